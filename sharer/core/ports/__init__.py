"""What the flows need from outside, as Protocols, and the values that pass. No flow imports an adapter.

Here is what `sharer/outside.py` opens for the whole agent, by who is asked. In reading order: `driver`, `policy`,
`kubelet`, `injection`, `holders`, `api`; and `watch`, which adapters share. A port in the words of one room stands in
that room (`core/enforcer`, `core/mps/state`, `core/mps/daemon`, `core/mps/compute_modes`); what a single step needs
stands beside the step (`flows/tell/publish`, `flows/tell/label`, all of `flows/supervise`).
"""
