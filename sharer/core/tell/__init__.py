"""What the cluster is told of a node: Events, metrics, labels, and whether to count on it.

In reading order: `news`, `notices`, `figures`, `metrics`, `node_labels`, `ready`.
"""
