"""The text of a CDI spec, read as strictly as container runtimes do, and written.

What a runtime refuses must not be named, so the rules here are a runtime's own: measured on containerd 2.1
(runtime-facts §1.9–1.14), the rest from the CDI specification up to 1.0.0. One fault refuses the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import yaml

from sharer.core.injection import is_cdi_kind

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")

_DEVICE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


class SpecRefused(ValueError):  # noqa: N818 - an answer about a file, caught where it is read
    """A container runtime would not load this text. The message says why."""


class _Part(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """The specification's spelling of names; what is absent is empty; nothing unknown."""


class SpecNode(_Part):
    """A device node made in the container. With a type and a major number the runtime does not look at the host."""

    path: str = ""
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class SpecMount(_Part):
    """A mount."""

    host_path: str = ""
    container_path: str = ""
    options: list[str] | None = None
    type: str = ""


class SpecHook(_Part):
    """A program run at a point of the container's life."""

    hook_name: str = ""
    path: str = ""
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


class SpecRdt(_Part):
    """Intel's cache and bandwidth partitions."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = ""
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")


class SpecEdits(_Part):
    """What a container is given for a device, or for any device of the file."""

    env: list[str] | None = None
    device_nodes: list[SpecNode] | None = None
    hooks: list[SpecHook] | None = None
    mounts: list[SpecMount] | None = None
    intel_rdt: SpecRdt | None = None
    additional_gids: list[int] | None = None


class SpecDevice(_Part):
    """One device."""

    name: str = ""
    annotations: dict[str, str] | None = None
    container_edits: SpecEdits | None = None


class Spec(_Part):
    """A whole file."""

    cdi_version: str = ""
    kind: str = ""
    annotations: dict[str, str] | None = None
    devices: list[SpecDevice] | None = None
    container_edits: SpecEdits | None = None

    def edits(self, device: SpecDevice) -> tuple[SpecEdits, SpecEdits]:
        """What a container is given with this device: by the file, and by the device itself."""
        return _edits(self.container_edits), _edits(device.container_edits)

    def needed_nodes(self, device: SpecDevice) -> list[str]:
        """Host paths of the device nodes that the runtime looks at when it injects this device."""
        nodes = [node for edits in self.edits(device) for node in edits.device_nodes or ()]
        return [node.host_path or node.path for node in nodes if not (node.type and (node.major or node.type == "p"))]


def read_spec(text: bytes) -> Spec:
    """Read a spec in JSON or YAML. Raises SpecRefused for whatever a container runtime would not load."""
    try:
        spec = _decode(text)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise SpecRefused(" ".join(str(error).split())) from error
    if spec.cdi_version not in VERSIONS:
        raise SpecRefused(f"cdiVersion {spec.cdi_version!r} is not one of {', '.join(VERSIONS)}")
    lowest = lowest_version(spec)
    if VERSIONS.index(spec.cdi_version) < VERSIONS.index(lowest):
        raise SpecRefused(f"cdiVersion is {spec.cdi_version}, and what the file uses came with {lowest}")
    if not is_cdi_kind(spec.kind):
        raise SpecRefused(f"kind {spec.kind!r} is not of the form vendor.com/class")
    _check_edits(_edits(spec.container_edits), "containerEdits")
    _check_devices(spec.devices or [])
    return spec


def write_spec(kind: str, devices: Mapping[str, Sequence[str]]) -> bytes:
    """A spec whose devices, by name, set these "NAME=value" variables. The lowest version that fits, names in order."""
    spec = Spec(
        cdi_version=VERSIONS[0],
        kind=kind,
        devices=[
            SpecDevice(name=name, container_edits=SpecEdits(env=list(env))) for name, env in sorted(devices.items())
        ],
    )
    return msgspec.json.encode(msgspec.structs.replace(spec, cdi_version=lowest_version(spec)))


def lowest_version(spec: Spec) -> str:
    """The first version of the specification that has everything this spec uses."""
    devices = spec.devices or []
    edits = [_edits(spec.container_edits), *(_edits(device.container_edits) for device in devices)]
    if any(one.intel_rdt is not None or one.additional_gids for one in edits):
        return "0.7.0"
    if spec.annotations or any(device.annotations for device in devices) or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    if any(not device.name[:1].isalpha() for device in devices if device.name):
        return "0.5.0"
    if any(node.host_path for one in edits for node in one.device_nodes or ()):
        return "0.5.0"
    if any(mount.type for one in edits for mount in one.mounts or ()):
        return "0.4.0"
    return "0.3.0"


class _PlainLoader(yaml.CBaseLoader):
    """Every scalar is text but null: the place where it stands decides its type, as in the runtimes' own reader."""


_NULL = "tag:yaml.org,2002:null"
_PlainLoader.add_implicit_resolver(_NULL, re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_PlainLoader.add_constructor(_NULL, lambda _loader, _node: None)


def _decode(text: bytes) -> Spec:
    if text.lstrip()[:1] == b"{":
        return msgspec.json.decode(text, type=Spec)
    document = yaml.load(text, Loader=_PlainLoader)  # builds nothing but text, lists and mappings
    return msgspec.convert(document, type=Spec, strict=False)


def _edits(edits: SpecEdits | None) -> SpecEdits:
    return edits if edits is not None else SpecEdits()


def _check_devices(devices: Sequence[SpecDevice]) -> None:
    if not devices:
        raise SpecRefused("it has no devices")
    names: set[str] = set()
    for device in devices:
        if not _DEVICE_NAME.fullmatch(device.name):
            raise SpecRefused(f"device name {device.name!r} has other characters than letters, digits and -_.:")
        if device.name in names:
            raise SpecRefused(f"device {device.name!r} is there twice")
        names.add(device.name)
        edits = _edits(device.container_edits)
        if edits.intel_rdt is None and not any(
            (edits.env, edits.device_nodes, edits.hooks, edits.mounts, edits.additional_gids)
        ):
            raise SpecRefused(f"device {device.name!r} has empty containerEdits, which refuses the whole file")
        _check_edits(edits, f"device {device.name!r}")


def _check_edits(edits: SpecEdits, where: str) -> None:
    for variable in [*(edits.env or ()), *(each for hook in edits.hooks or () for each in hook.env or ())]:
        if variable.find("=") <= 0:
            raise SpecRefused(f"{where}: {variable!r} is not NAME=value")
    for node in edits.device_nodes or ():
        if not node.path or node.type not in ("", "b", "c", "u", "p") or node.permissions.strip("rwm"):
            raise SpecRefused(f"{where}: a node {node.path!r} of type {node.type!r} with rights {node.permissions!r}")
    for hook in edits.hooks or ():
        if hook.hook_name not in _HOOKS or not hook.path:
            raise SpecRefused(f"{where}: a hook {hook.hook_name!r} with path {hook.path!r}")
    for mount in edits.mounts or ():
        if not mount.host_path or not mount.container_path:
            raise SpecRefused(f"{where}: a mount of {mount.host_path!r} at {mount.container_path!r}")
