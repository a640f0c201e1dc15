"""The driver and the GPUs of a node: how they are harmed, and how long that may be felt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sharer.simulation.hardware import SimulatedGpu
from sharer.simulation.steering import Fault
from tests.e2e.node import Node
from tests.faults import steps
from tests.faults.policies import GPUS, in_mig_mode
from tests.faults.steps import DriverStep

GPU_RESET = 1  # NVML's recovery action
SET_CALL = "nvmlDeviceSetMemoryLimits_v1"
RECOVERY_CALL = "nvmlDeviceGetFieldValues"  # asks for that, once for each GPU at a look
FELT_S = 14.0  # a whole look at the driver comes every 10 s, and so does what can hold limits after a failure


class DriverSide:
    """What is wrong with it now."""

    def __init__(self, node: Node, gpus: Sequence[SimulatedGpu], *, has_cdi: bool) -> None:
        """`has_cdi`: NVIDIA's toolkit writes a CDI spec of its devices."""
        self._node, self._gpus, self._has_cdi = node, tuple(gpus), has_cdi
        self._lost: dict[int, Fault] = {}  # by number
        self._broken: set[int] = set()
        self._cut_up: set[int] = set()  # in MIG mode
        self._trouble_s = 0.0  # when it was last made to fail
        self._faults: list[tuple[str, Fault]] = []  # by function: some calls, when they come
        self._hang: Fault | None = None  # of one function, until it is freed
        self._limits_hang: Fault | None = None  # at a change of a limit
        self._write_spec()

    @property
    def hangs(self) -> bool:
        """Whether a function never comes back."""
        return self._hang is not None

    @property
    def faulty(self) -> set[str]:
        """UUIDs of the GPUs on which nothing can run."""
        return {GPUS[number].uuid for number in self._broken | self._lost.keys()}

    @property
    def sliced(self) -> set[str]:
        """UUIDs of the GPUs in MIG mode, of which nothing is offered as a whole."""
        return {GPUS[number].uuid for number in self._cut_up}

    def lag_s(self) -> float:
        """For how long what happened to it may still be felt."""
        return FELT_S if self._faults else max(0.0, self._trouble_s + FELT_S - time.monotonic())

    def do(self, step: DriverStep, *, is_watched: bool) -> None:
        """Let something happen. `is_watched`: an agent runs."""
        gpus = self._node.gpus
        match step:
            case steps.HangLimits():
                self.end_limits_hang()
                self._limits_hang = gpus.hang(SET_CALL, after=step.after)
            case steps.FailDriver():
                fault = gpus.fail(step.function, step.code, uuid=GPUS[step.number].uuid, times=step.times)
                self._faults.append((step.function, fault))
            case steps.HangDriver():
                self._hang = self._hang or gpus.hang(step.function)
            case steps.FreeDriver():
                self._free()
            case steps.CutGpu():
                self._cut_up.add(step.number)
                self._trouble_s = time.monotonic()
                self._node.write_device_files([in_mig_mode(step.number)])
                gpus.put(in_mig_mode(step.number))
                self._write_spec()
            case steps.LoseGpu():
                self._lost[step.number] = gpus.lose(GPUS[step.number].uuid)
            case steps.BreakGpu():
                gpu = GPUS[step.number]
                self._broken.add(step.number)
                gpus.put(replace(gpu, recovery_action=GPU_RESET))
                gpus.xid(gpu.uuid, 79)
            case steps.RepairGpu():
                self._repair(step.number, is_watched=is_watched)
            case steps.Xid():
                gpus.xid(GPUS[step.number].uuid, step.xid)

    def repair(self, *, is_watched: bool) -> None:
        """Nothing is wrong with it any more."""
        self._free()
        for number in [*self._lost, *self._broken, *self._cut_up]:
            self._repair(number, is_watched=is_watched)

    def end_limits_hang(self) -> None:
        """Whoever hung at a limit is dead."""
        if self._limits_hang is not None:
            self._node.gpus.clear(self._limits_hang)
            self._limits_hang = None

    def _free(self) -> None:
        if self._hang is not None:
            self._node.gpus.clear(self._hang)
            self._hang = None
            self._trouble_s = time.monotonic()

    def _repair(self, number: int, *, is_watched: bool) -> None:
        gpu = GPUS[number]
        if number in self._lost:
            self._node.gpus.clear(self._lost.pop(number))
        if number in self._cut_up:
            self._cut_up.remove(number)
            self._trouble_s = time.monotonic()
            self._node.gpus.put(gpu)
            self._write_spec()
        if number in self._broken and self._hang is None:  # nobody resets a GPU while its driver hangs
            if is_watched:
                self._await_look()  # a reset takes longer than the agent takes to see that it is wanted
            self._broken.remove(number)
            self._node.gpus.put(gpu)

    def _await_look(self) -> None:
        for function, fault in self._faults:
            if function == RECOVERY_CALL:  # a reset that nobody could see is the operator's to tell
                self._node.gpus.clear(fault)
        seen = self._node.gpus.calls(RECOVERY_CALL)
        self._node.gpus.wait_for_calls(RECOVERY_CALL, seen + 2 * len(self._gpus))  # one look began after now

    def _write_spec(self) -> None:
        """As NVIDIA's toolkit does after every change of the devices."""
        if self._has_cdi:
            cut_up = {GPUS[number].uuid: in_mig_mode(number) for number in self._cut_up}
            self._node.write_driver_spec([cut_up.get(gpu.uuid, gpu) for gpu in self._gpus])
