"""How a fake has to behave: what its files are called, and how the executable reads them. Imports next to nothing."""

from __future__ import annotations

import json

FILE_NAME, COMMANDS, STARTS, SERVERS = "steering.json", "commands.log", "starts.log", "servers.log"


def read_manners(folder: str) -> dict[str, object]:
    """How a fake with this folder has to behave now."""
    with open(f"{folder}/{FILE_NAME}", encoding="utf-8") as file:
        manners: dict[str, object] = json.load(file)
    return manners
