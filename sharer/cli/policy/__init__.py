"""`sharer policy`: what a policy says, what it would change on a node or a fleet, and the steps of a rollout.

In reading order: `command`, `live_plan`, `cluster_plan`, `steps`.
"""
