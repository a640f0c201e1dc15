"""Chance: seeded random sequences of everything that happens to a node, against the real agent as a process.

Read it in this order: `steps` (what can happen), `sequence` (what a seed makes of it), `world` (how it is done to a
node), `truth` with `history` (what must be true after it), `run` (one seed), `__main__` (many).
"""
