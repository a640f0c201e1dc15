"""What is published of a node: values of the schema (DESIGN §8), worked out from what the agent knows.

In reading order: `inventory`, `plan`, `node`, `account`, `slice_counts`, `gpu_use`, `gpu_rows`, `preview`,
`gpu_node`, `gpu_node_size`.
"""
