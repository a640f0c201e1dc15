"""What each container may use, what it does use, and who uses too much.

In reading order: `limits`, `usage`, `excess`.
"""
