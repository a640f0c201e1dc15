"""Containers are held to their promises, and what holds them is read back.

In reading order: `enforce`, `prestart`, `diary`.
"""
