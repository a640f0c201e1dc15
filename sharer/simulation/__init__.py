"""A node without hardware: fakes that speak the real protocols, for the demo, for planning and for tests.

The hardware    `products` (real GPUs by short names), `hardware`, `steering`, `gpus` over `nvml`; `describe` (no agent)
The host        `cgroups`, `memory_limits`, `mps` with `supervision`
The cluster     `kubelet`, `apiserver`
The whole node  `node`; the demo on it: `scenario`, `scene`, `story`
The planner     `planner`, `manifests`
"""
