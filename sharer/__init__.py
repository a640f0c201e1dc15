"""sharer: pods share NVIDIA GPUs on a stock Kubernetes cluster.

Begin with `daemon`, the agent's loop. Around it: `settings`, `outside` (what it talks to), `published` with `pages`
(what it tells). Below it: `flows` (its steps), `core` (every decision), `adapters` and `enforcers` (the world outside),
`kubeletapi` (generated). Above it: `cli`, which `__main__` runs, and `simulation` (a node without hardware).
"""
