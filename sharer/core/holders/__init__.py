"""Who holds what: what was seen, what that is worth as evidence, and the ledger that is worked out from it.

In reading order: `observations`, `evidence`, `testimony`, `ledger`, `findings`.
"""
