"""How something is shown to people in a terminal, by whatever command.

In reading order: `tables`, `long_table`, `progress`.
"""
