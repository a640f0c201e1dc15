"""How this process runs: node name, paths, ways of injection. Flags win over SHARER_AGENT_* variables over defaults.

What the node's GPUs are used for is not here: that is the policy.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sharer.core.edits import Injection, OptIns
from sharer.core.injection import is_cdi_kind
from sharer.core.values import dataclass, field_names

ENV_PREFIX = "SHARER_AGENT_"
PAUSE_LABELS = tuple(f"nvidia.com/gpu.deploy.{what}" for what in ("client", "device-plugin", "gpu-feature-discovery"))
"""Of the GPU Operator: `client` since 26.7. What is "false", as the device plugin should be where we are, stays so."""
_LINK = r"_SERVICE_(HOST|PORT)[_=]|_PORT=(tcp|udp|sctp)://|_PORT_\d+_(TCP|UDP|SCTP)[_=]"
"""What Kubernetes puts into every pod for a Service, as one called sharer-agent-http that somebody has made."""
EPILOG = """\
Every flag is also a variable: --device-plugin-dir is SHARER_AGENT_DEVICE_PLUGIN_DIR.

example:
  sharer agent --policy /etc/sharer/policy.yaml --injection device-nodes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about this process that an operator can set. Paths are as this process sees them."""

    node_name: str
    policy: Path | None  # a file, or a mounted ConfigMap's directory
    policy_configmap: tuple[str, str] | None = None  # namespace and name; the API server's word goes before `policy`
    device_plugin_dir: Path = Path("/var/lib/kubelet/device-plugins")  # fixed by the kubelet (kubelet-contract §1)
    pod_resources_socket: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")  # below the kubelet's --root-dir
    checkpoint: Path | None = None  # the kubelet's; None: in the device-plugin directory
    run_dir: Path = Path("/run/sharer")
    state_dir: Path = Path("/var/lib/sharer")
    mps_dir: Path = Path("/var/lib/sharer/mps")  # below state_dir unless it is set
    host_root: Path = Path("/")
    dev_root: Path = Path("/dev")
    proc_root: Path = Path("/proc")
    sys_root: Path = Path("/sys")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    driver_library: Path | None = None  # None: looked for in the usual folders
    injection: tuple[Injection, ...] | None = None  # None: whatever the node can do
    cdi_dir: tuple[Path, ...] | None = None  # in the container runtime's order; None: its defaults below host_root
    cdi_kind: str = "nvidia.com/gpu"
    imex_channels: tuple[int, ...] = ()
    gds: bool = False
    mofed: bool = False
    gdrcopy: bool = False
    http: tuple[str, int] | None = None  # address and port for metrics and probes; "": every address; None: not served
    kubernetes: str = "off"  # "off", "auto" or the path of a kubeconfig
    publish: bool = True  # whether the node is told of by a GpuNode and a Lease, where there is an API server
    namespace: str | None = None  # of this agent, for its Lease; None: as the pod's service account says
    node_labels: bool = False  # whether the Node is labelled with what its GPUs are
    pause_label: tuple[str, ...] = PAUSE_LABELS
    log_format: str = "text"

    @property
    def opt_ins(self) -> OptIns:
        """What every container with a GPU is given besides."""
        return OptIns(imex_channels=self.imex_channels, gds=self.gds, mofed=self.mofed, gdrcopy=self.gdrcopy)


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags and SHARER_AGENT_* variables.

    Raises SystemExit(2) after saying what is wrong, and SystemExit(0) after --help, as argparse does.
    """
    parser = _parser()
    known = {ENV_PREFIX + name.upper(): name for name in field_names(Settings)}
    for variable in sorted(environment):
        if not variable.startswith(ENV_PREFIX):
            continue
        if variable in known:
            parser.set_defaults(**{known[variable]: environment[variable]})
        elif not re.search(_LINK, f"{variable}={environment[variable]}") and (near := _similar(variable, known)):
            parser.error(f"the variable {variable} is not known; did you mean {near}?")
    found = vars(parser.parse_args(arguments))
    found["mps_dir"] = found["mps_dir"] or found["state_dir"] / "mps"
    return Settings(**found)


def _similar(variable: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # only for a misspelt one

    return next(iter(get_close_matches(variable, known, n=1, cutoff=0.85)), None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sharer agent",
        usage="sharer agent [FLAGS]; sharer agent --help lists them",
        description="Share this node's GPUs until told to stop.",
        epilog=EPILOG,
        formatter_class=_formatter(),
        allow_abbrev=False,
    )

    def option(flag: str, default: str | None, meaning: str, metavar: str, kind: object = Path) -> None:
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(flag, default=default, metavar=metavar, type=kind, help=meaning + shown)  # type: ignore[arg-type]

    def switch(flag: str, meaning: str) -> None:
        parser.add_argument(
            flag, nargs="?", const=True, default=False, metavar="true|false", type=_switch, help=meaning
        )

    defaults = Settings(node_name="", policy=None)
    node = os.environ.get("NODE_NAME") or socket.gethostname()
    option("--node-name", node, "this node's name in Kubernetes", "NAME", str)
    option("--policy", None, "the policy: a file, or the directory of a mounted ConfigMap", "FILE|DIR")
    option("--policy-configmap", None, "the ConfigMap with the policies, read from the API", "NS/NAME", _configmap)
    option("--device-plugin-dir", str(defaults.device_plugin_dir), "where the kubelet listens for plugins", "DIR")
    option(
        "--pod-resources-socket", str(defaults.pod_resources_socket), "where the kubelet tells who holds what", "FILE"
    )
    option("--checkpoint", None, "the kubelet's checkpoint (default: in --device-plugin-dir)", "FILE")
    option("--run-dir", str(defaults.run_dir), "lock and last good policy; may be lost at a reboot", "DIR")
    option("--state-dir", str(defaults.state_dir), "what containers are given paths to; outlives a reboot", "DIR")
    option("--mps-dir", None, "the same directory as `sharer mps` is given (default: mps in --state-dir)", "DIR")
    option("--host-root", str(defaults.host_root), "where this process sees the host's /", "DIR")
    option("--dev-root", str(defaults.dev_root), "where this process sees the host's /dev", "DIR")
    option("--proc-root", str(defaults.proc_root), "where this process sees the host's /proc", "DIR")
    option("--sys-root", str(defaults.sys_root), "where this process sees the host's /sys", "DIR")
    option("--cgroup-root", str(defaults.cgroup_root), "where this process sees the host's /sys/fs/cgroup", "DIR")
    option("--driver-library", None, "libnvidia-ml.so.1 (default: looked for below --host-root)", "FILE")
    option(
        "--injection", "auto", "how GPUs get into containers: auto, or a comma list of "
        + ", ".join(Injection), "WAYS", _injection,
    )  # fmt: skip
    parser.add_argument(
        "--cdi-dir", action=_Repeatable, metavar="DIR", type=_paths,
        help="where the container runtime reads CDI specs; repeat it in the runtime's order, or give a comma list"
        " (default: /etc/cdi and /var/run/cdi below --host-root)",
    )  # fmt: skip
    option("--cdi-kind", defaults.cdi_kind, "the kind of the GPUs in CDI specs", "VENDOR/CLASS", _cdi_kind)
    parser.add_argument(
        "--imex-channels", default=(), metavar="N,N", type=_channels, help="IMEX channels that every container gets"
    )
    switch("--gds", "give every container GPUDirect Storage (NVIDIA_GDS)")
    switch("--mofed", "give every container the InfiniBand devices (NVIDIA_MOFED)")
    switch("--gdrcopy", "give every container GDRCopy (NVIDIA_GDRCOPY)")
    option(
        "--kubernetes",
        "auto",
        "the API server: off, auto (the pod's service account), or a kubeconfig",
        "off|auto|PATH",
        str,
    )
    option("--publish", "auto", "a GpuNode and a Lease: auto (where there is an API), or off", "auto|off", _publish)
    namespace = os.environ.get("POD_NAMESPACE") or None
    option("--namespace", namespace, "this agent's namespace, for its Lease (default: its pod's)", "NAME", str)
    option("--http", "off", "where metrics and probes are served, such as :9400", "ADDRESS:PORT|off", _http)
    option("--node-labels", "off", "label this Node with product, memory and count of its GPUs", "on|off", _on_off)
    parser.add_argument(
        "--pause-label", default=defaults.pause_label, metavar="KEY,KEY|off", type=_label_keys,
        help="the Node's labels by which a driver's manager pauses us, as a comma list; off: none (default: the GPU"
        " Operator's)",
    )  # fmt: skip
    option("--log-format", defaults.log_format, "text or json", "FORMAT", _log_format)
    return parser


def _formatter() -> Callable[..., argparse.HelpFormatter]:
    """As wide as the terminal, like any other; but that is asked once, and not for every flag at each start."""
    return partial(argparse.RawDescriptionHelpFormatter, width=shutil.get_terminal_size().columns - 2)


class _Repeatable(argparse.Action):
    """A flag whose values add up. Together they replace the variable's list; they do not add to it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """A tuple is there only if this flag came before: the variable's text is turned into one at the end."""
        before = getattr(namespace, self.dest)
        assert isinstance(values, tuple)
        setattr(namespace, self.dest, (*before, *values) if isinstance(before, tuple) else values)


def _paths(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(part.strip()) for part in text.split(",") if part.strip())
    if not paths:
        raise argparse.ArgumentTypeError("it names no directory; leave it out for the default")
    return paths


def _switch(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text == "true"


def _channels(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit())]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not the number of an IMEX channel; write a comma list")
    return tuple(sorted({int(part) for part in parts}))


def _configmap(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is not a namespace and a name, such as gpu/sharing-policies")
    return namespace, name


def _cdi_kind(text: str) -> str:
    if not is_cdi_kind(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a CDI kind; one is nvidia.com/gpu, without a device name")
    return text


def _injection(text: str) -> tuple[Injection, ...] | None:
    if text == "auto":
        return None
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in set(Injection)]:
        allowed = ", ".join(Injection)
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r} is not a way of injection; use auto, or a comma list of {allowed}"
        )
    return tuple(dict.fromkeys(Injection(name) for name in names))


def _http(text: str) -> tuple[str, int] | None:
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host) != is_bracketed:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not off, nor an address and a port such as :9400, 127.0.0.1:9400 or [::1]:9400"
        )
    return host[1:-1] if is_bracketed else host, int(port)


def _on_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is not on or off")
    return text == "on"


def _label_keys(text: str) -> tuple[str, ...]:
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    return () if keys == ("off",) else keys


def _publish(text: str) -> bool:
    if text not in ("auto", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor off")
    return text == "auto"


def _log_format(text: str) -> str:
    if text not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a log format; use text or json")
    return text
