"""An NVML library made of Python, under NVML's C function names.

pynvml takes any object as its library, asks it for attributes with NVML's names and calls them with ctypes arguments.
`SimulatedLibrary` is such an object. In reading order: `driver`, `session`, `entry`, `answers`, `functions`, `library`.
"""

from sharer.simulation.nvml.library import SimulatedLibrary

__all__ = ["SimulatedLibrary"]
