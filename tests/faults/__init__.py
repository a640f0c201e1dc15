"""Chance: seeded random sequences of everything that happens to a node, against the real agent as a process.

Read it in this order: `steps` (what can happen), `sequence` (what a seed makes of it), `world` with `node_api` and
`checkpoint` (how it is done to a node), `truth` with `limits` and `history` (what must be true after it), `run` (one
seed), `shrink` (what of a seed makes it fail), `__main__` (many).
"""
