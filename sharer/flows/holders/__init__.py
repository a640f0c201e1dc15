"""Who holds what: every source is read at its own pace, and the ledger is brought up to date.

In reading order: `observe`, `round_table`, `attribute`, `ledger_news`, `displaced`, `findings`.
"""
