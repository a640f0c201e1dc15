"""Containers are held to their promises, and what holds them is read back.

In reading order: `enforce` with its parts `tenancy` (who is to be held to what), `grip` (have it held, and let go) and
`diary` (who is looked at when); `prestart`.
"""
