"""Endurance: the real agent, as a process, lives through an accelerated day; what it weighs must not grow.

Read it in this order: `day` (what happens), `growth` (what is measured, and what must be flat), `__main__`.
"""
