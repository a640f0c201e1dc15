"""Steps in their order: each asks adapters, lets the core decide, and says in one sentence what it did."""
