"""The fleet: GpuNodes, Nodes and Pods counted by one rule, and what a policy would change on each node.

In reading order: `facts`, `pod_asks`, `account`, `report`, `totals`, `notes`, `rows`, `live`, `plan`, `cuts`.
"""
