"""`sharer doctor`: what is looked at, and how it is told. What is wrong is judged in `core/doctor`.

In reading order: `command`, `node_survey`.
"""
