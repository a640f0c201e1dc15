"""The process `sharer mps`: keeps the MPS control daemons that the agent asks for. Nothing of the agent is known here.

In reading order: `supervisor`, `keep_daemon`, `compute_modes`.
"""
