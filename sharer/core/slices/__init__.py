"""What a node offers: policy and inventory in, slices out; and which slices suit a container best.

In reading order: `cut`, `plan`, `linked`, `placement`.
"""
