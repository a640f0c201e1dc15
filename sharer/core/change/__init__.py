"""From one policy to the next on a live node: which policy is wanted, when its turn is, and which steps lead there.

In reading order: `choice`, `rollout`, `transition`.
"""
