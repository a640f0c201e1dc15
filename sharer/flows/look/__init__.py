"""What is wanted of the node and what exists on it: policy, driver, health, MPS daemons, and what could hold limits.

In reading order: `pause`, `refresh`, `reload`, `health`, `recover`, `links`, `mps`, `availability`.
"""
