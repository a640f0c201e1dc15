"""The facts of this node, read anew each time, and our own CDI specs kept beside them.

With `auto` the choice goes one way: as soon as a CDI spec names one of our devices, `cdi` it is, for as long as the
agent runs. A spec that is being rewritten must not flip a node back and forth; a device that is not in it any more is
unusable with the reason, until it is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from sharer.adapters.injection.nodes import DeviceNodes
from sharer.adapters.injection.paths import HostPaths
from sharer.adapters.injection.slice_specs import SliceSpecFiles
from sharer.adapters.injection.spec_dirs import Names, SpecDirs
from sharer.core.device_id import DeviceId
from sharer.core.edits import DeviceFacts, Injection, NodeFacts, OptIns
from sharer.core.enforcer import Editor
from sharer.core.errors import NodeError, RequestError
from sharer.core.injection import choose_injection, injection_warnings, opt_in_names, slice_variables
from sharer.core.inventory import Inventory, MigDevice, PhysicalGpu
from sharer.core.values import dataclass, replace

DEFAULT_CDI_DIRS = ("/etc/cdi", "/var/run/cdi")  # on the host; the default of containerd and CRI-O
MAX_SLICES = 2048  # a runtime reads every spec again for each container: above some 0.7 MB that is felt
_WRITE_ANEW = "write the spec again with nvidia-ctk cdi generate"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The slices of one device whose specs should be in place."""

    basis: tuple[object, ...]  # everything that what is written follows from
    names: frozenset[str]


class InjectionFacts:
    """Implements core.ports.injection.FactsReader and core.ports.injection.SliceSpecs. For one thread."""

    def __init__(
        self,
        paths: HostPaths,
        requested: tuple[Injection, ...] | None = None,
        *,
        enforcers: Sequence[Editor] = (),
        cdi_dirs: Sequence[Path] | None = None,
        cdi_kind: str = "nvidia.com/gpu",
        opt_ins: OptIns | None = None,
    ) -> None:
        """`requested` None: auto. `cdi_dirs` as this process sees them, in the runtime's order; None: its defaults."""
        self._paths = paths
        self._requested = requested
        self._enforcers = enforcers
        self._cdi_dirs = cdi_dirs
        self._cdi_kind = cdi_kind
        self._opt_ins = opt_ins if opt_ins is not None else OptIns()
        self._nodes = DeviceNodes(paths, self._opt_ins)
        self._specs = SpecDirs(self._directories)
        self._slices = SliceSpecFiles(self._directories)
        self._asked: tuple[DeviceId, ...] = ()
        self._wanted: dict[str, _Wanted] = {}  # by UUID
        self._problems: dict[str, str] = {}  # by UUID, or "": why its slices have no spec
        self._leftover: str | None = None  # why slices that are gone still have a spec
        self._warned: tuple[str, ...] = ()
        self._resolved = False
        self._last: NodeFacts | None = None

    def read(self, inventory: Inventory) -> NodeFacts:
        """The facts now; the same object as last time if nothing changed."""
        names = self._specs.look()
        cdi_problem = self._cdi_problem(inventory, names)
        injection, reason = choose_injection(self._requested, cdi_problem)
        shared, problem = self._nodes.shared() if Injection.DEVICE_NODES in injection else ((), None)
        common = [problem] if problem else []
        if Injection.CDI in injection:
            wanted = opt_in_names(self._opt_ins, self._cdi_kind)
            common += [problem for name in wanted if (problem := self._name_problem(name, names))]
        facts = NodeFacts(
            injection=injection,
            devices={
                uuid: self._device(gpu, mig, injection, names, common, inventory.driver_version)
                for uuid, gpu, mig in _devices(inventory)
            },
            shared_nodes=shared,
            opt_ins=self._opt_ins,
            cdi_kind=self._cdi_kind,
            injection_reason=reason,
            warnings=injection_warnings(injection),
        )
        return self._marked(facts)

    def write(self, ids: Iterable[DeviceId], facts: NodeFacts) -> NodeFacts:
        """See core.ports.injection.SliceSpecs. Does nothing unless `cdi` is in use."""
        if Injection.CDI not in facts.injection:
            return facts
        asked = tuple(ids)
        is_told = self._leftover is None or self._leftover in facts.warnings
        if asked == self._asked and facts is self._last and is_told and not self._problems and self._all_in_place():
            return facts
        self._asked = asked
        self._problems.clear()
        if len(asked) > MAX_SLICES:
            self._wanted.clear()
            self._problems[""] = (
                f"{len(asked)} slices are more than the {MAX_SLICES} that get CDI specs of their own, so a pod can"
                " override the SHARER_* variables; lower slices"
            )
            return self._marked(facts)
        by_uuid: dict[str, list[DeviceId]] = {}
        for device_id in asked:
            by_uuid.setdefault(device_id.uuid, []).append(device_id)
        self._wanted = {uuid: wanted for uuid, wanted in self._wanted.items() if uuid in by_uuid}
        for uuid, held in by_uuid.items():
            self._write_device(uuid, held, facts)
        return self._marked(facts)

    @property
    def is_behind(self) -> bool:
        """See core.ports.injection.SliceSpecs. Too many slices are no reason: those stay too many."""
        return any(uuid for uuid in self._problems)

    @property
    def has_leftovers(self) -> bool:
        """See core.ports.injection.SliceSpecs."""
        return self._leftover is not None

    def keep_only(self, ids: Collection[DeviceId]) -> None:
        """See core.ports.injection.SliceSpecs."""
        try:
            self._slices.keep_only({str(device_id) for device_id in ids})
        except NodeError as error:
            if self._leftover != str(error):
                _log.warning("%s", error)
            self._leftover = str(error)
            return
        if self._leftover is not None:
            _log.info("the CDI specs of slices that are gone are cleared")
        self._leftover = None

    def _write_device(self, uuid: str, ids: Sequence[DeviceId], facts: NodeFacts) -> None:
        device = facts.devices.get(uuid, DeviceFacts())
        basis = (frozenset(ids), device.driver_limit, device.mps_pipe, frozenset(device.mps_namespaces))
        before = self._wanted.pop(uuid, None)
        if before is not None and before.basis == basis and self._slices.in_place(uuid, before.names):
            self._wanted[uuid] = before
            return
        slices = {}
        for device_id in ids:
            with contextlib.suppress(RequestError):  # no container gets this one, and Allocate says why
                variables = slice_variables(device_id, facts, self._enforcers)
                slices[str(device_id)] = [f"{name}={value}" for name, value in sorted(variables.items())]
        if not slices:
            return
        try:
            self._slices.add(uuid, slices)
            self._wanted[uuid] = _Wanted(basis, frozenset(slices))
        except NodeError as error:
            self._problems[uuid] = f"{error}; until then a pod can override the SHARER_* variables"

    def _all_in_place(self) -> bool:
        return all(self._slices.in_place(uuid, wanted.names) for uuid, wanted in self._wanted.items())

    def _marked(self, facts: NodeFacts) -> NodeFacts:
        """The facts with what is known of our own specs."""
        devices = dict(facts.devices)
        for uuid, device in facts.devices.items():
            wanted = self._wanted.get(uuid)
            there = (
                Injection.CDI in facts.injection and wanted is not None and self._slices.in_place(uuid, wanted.names)
            )
            if there != device.slice_spec:
                devices[uuid] = replace(device, slice_spec=there)
        others = tuple(warning for warning in facts.warnings if warning not in self._warned)
        leftovers = () if self._leftover is None else (self._leftover,)
        self._warned = tuple(dict.fromkeys((*self._problems.values(), *leftovers)))
        marked = replace(facts, devices=devices, warnings=others + self._warned)
        if self._last is None or marked != self._last or list(marked.devices) != list(self._last.devices):
            self._last = marked
        return self._last

    def _device(
        self,
        gpu: PhysicalGpu,
        mig: MigDevice | None,
        injection: Sequence[Injection],
        names: Names,
        common: Sequence[str],
        driver_version: str | None,
    ) -> DeviceFacts:
        facts = DeviceFacts()
        problems = list(common)
        if Injection.DEVICE_NODES in injection:
            facts = self._nodes.of_gpu(gpu) if mig is None else self._nodes.of_mig(gpu, mig)
            problems += [facts.unusable] if facts.unusable else []
        if Injection.CDI in injection:
            name = f"{self._cdi_kind}={gpu.uuid if mig is None else mig.uuid}"
            problem = self._name_problem(name, names)
            if problem is None and gpu.lost is None and (mig is None or mig.lost is None):
                from sharer.adapters.injection.outdated import outdated  # with the first spec, as its format

                given_besides = Injection.DEVICE_NODES in injection
                wrong = outdated(
                    names.edits[name],
                    minor_number=gpu.minor_number,
                    needed=() if given_besides else self._nodes.beside(gpu, mig),
                    driver_version=driver_version,
                    number_of=self._nodes.number,
                )
                problem = wrong and f"the CDI spec of {name} is out of date: it {wrong}; {_WRITE_ANEW}"
            problems += [problem] if problem else []
            facts = replace(facts, cdi_name=None if problem else name)
        return replace(facts, unusable="; ".join(problems) or None)

    def _cdi_problem(self, inventory: Inventory, names: Names) -> str | None:
        """Why no name of a device that is here resolves; None: one does, or did before."""
        here = [
            f"{self._cdi_kind}={uuid}"
            for uuid, gpu, mig in _devices(inventory)
            if gpu.lost is None and (mig is None or mig.lost is None)
        ]
        self._resolved = self._resolved or any(name in names.nodes for name in here)
        if self._resolved:
            return None
        return names.problem(here[0]) if here else "no GPU is known that a CDI spec could name"

    def _name_problem(self, name: str, names: Names) -> str | None:
        """Why the runtime could not inject this CDI device. Nodes outside /dev may be out of our sight."""
        if (problem := names.problem(name)) is not None:
            return problem
        for node in names.nodes[name]:
            if node.startswith("/dev/") and (problem := self._nodes.problem(node.removeprefix("/dev/"))) is not None:
                return f"the CDI spec of {name} needs {problem}; {_WRITE_ANEW}"
        return None

    def _directories(self) -> list[Path]:
        if self._cdi_dirs is not None:
            return list(self._cdi_dirs)
        return [self._paths.below(directory) for directory in DEFAULT_CDI_DIRS]


def _devices(inventory: Inventory) -> Iterator[tuple[str, PhysicalGpu, MigDevice | None]]:
    for gpu in inventory.gpus:
        yield gpu.uuid, gpu, None
        for mig in gpu.mig_devices:
            yield mig.uuid, gpu, mig
