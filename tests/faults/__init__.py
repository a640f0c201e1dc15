"""Chance: seeded random sequences of everything that happens to a node, against the real agent as a process.

Read it in this order: `steps` and `mps_steps` (what can happen), `sequence` and `mps_sequence` (what a seed makes of
it), `world` with its sides `driver`, `mps`, `places`, `node_api` and `checkpoint` (how it is done to a node), `opening`
(a node with all of them), `truth` with `limits`, `mps_truth`, `files` and `history` (what must be true after it), `run`
(one seed), `shrink` (what of a seed makes it fail), `__main__` (many).
"""
