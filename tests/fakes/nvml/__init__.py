"""A real `libnvidia-ml.so.1` without GPUs: a small C library, built when a test needs it, for any process."""

from tests.fakes.nvml.node import InstalledGpus

__all__ = ["InstalledGpus"]
