"""The library as pynvml sees it."""

from __future__ import annotations

from sharer.simulation.nvml.answers import CArgument
from sharer.simulation.nvml.driver import SimulatedDriver
from sharer.simulation.nvml.entry import FUNCTIONS, Function
from sharer.simulation.nvml.functions import Functions


class SimulatedLibrary:
    """What pynvml sees: an attribute for each function that this driver has."""

    def __init__(self, driver: SimulatedDriver, missing: frozenset[str]) -> None:
        self._process = Functions(driver)
        self._missing = missing

    def __getattr__(self, name: str) -> Function:
        if name not in FUNCTIONS or name in self._missing:
            raise AttributeError(f"undefined symbol: {name}")

        def call(*arguments: CArgument) -> int:  # a plain function, because pynvml sets `restype` on some
            return FUNCTIONS[name](self._process, *arguments)

        return call
