"""What the kubelet is shown, and what it is answered.

In reading order: `offer`, `allocate`.
"""
