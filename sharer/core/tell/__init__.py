"""What others are told without asking: Events, metrics and labels.

In reading order: `news`, `notices`, `figures`, `metrics`, `node_labels`.
"""
