"""Steps: each asks adapters, lets the core decide, and says in one sentence what it did.

The daemon's loop calls those of `look` (what is wanted, what exists), `holders` (who holds what) and `offer` (what the
kubelet is shown and answered) in this order. Threads of their own run `hold` (limits) and `tell` (the API server). All
of them meet in `state`, and wake the loop by `inbox`. `supervise` is another process, `sharer mps`.
"""
