"""NVIDIA MPS: which daemons a plan wants, how they are spoken to, watched over, and what clients are given.

In reading order: `state`, `wanted`, `daemon`, `compute_modes`, `supervision`, `service`.
"""
