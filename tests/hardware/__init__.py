"""What only real hardware can tell: `python -m tests.hardware`, as root on a node with a GPU, in a few minutes.

It fills the unknowns of `gpu-limits.md`, prints a table, and leaves nothing behind. Elsewhere it says why not.
"""
