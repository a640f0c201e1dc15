"""Translators between sharer's words and the outside: NVML, the kubelet, files. Strangers to each other.

The GPUs       `nvml`, and `mps` for NVIDIA's control daemons
The kubelet    `kubelet` (what it is offered), `checkpoint` and `podresources` (who holds what)
The host       `injection` (what containers can be given), `cgroups`, `processes`, `watch` (changed directories)
Policies       `policy_source`, `policy_memory`, `yaml_text`
The cluster    `kube`
People         `local_socket`, `http`, `metrics`, `documents`
This process   `lock`, `heap`
"""
