"""What others are told: the API server, on one thread, and whoever asks for a report, a metric or a probe.

In reading order: `announce`, `publish`, `events`, `evict`, `label`, `told`, `report`.
"""
