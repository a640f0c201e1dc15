"""Every decision: values in, values out; no clock, files, threads or network.

A policy becomes slices, slices get holders, a change of the policy has its steps, and what holds containers to their
promises is told to others. So read the rooms in this order: `policy`, `slices`, `holders`, `change`, `limits`, `mps`,
`report`, `tell`, `cluster`, `doctor`. Beside them are the words that all rooms share (`inventory`, `device_id`,
`grant`, `edits`, `errors`, `quantities`, `brief`, `cgroup_names`), what the flows need from outside (`ports`,
`enforcer`, `api_error`), what the kubelet is answered (`offers`, `injection`, `health`), and what reports are made from
(`known`, `enforcement`, `told`). `values` and `unchanged` are about speed only.
"""
