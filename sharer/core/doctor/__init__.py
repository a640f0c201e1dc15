"""What `sharer doctor` looks at, and what each finding means.

In reading order: `survey`, `node_checks`, `cluster_checks`, `checkup`.
"""
