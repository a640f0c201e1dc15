"""Who holds what: what was seen, what that is worth as evidence, the ledger that follows, and when to look again.

In reading order: `observations`, `evidence`, `testimony`, `ledger`, `findings`, `pace`.
"""
