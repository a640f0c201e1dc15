"""`sharer report`: from this node's agent or from the whole cluster, as tables, CSV, documents or one page.

In reading order: `command`, `node_table`, `cluster`, `cluster_table`, `picture` (whose parts are in `page/`).
"""
