"""The parts of the NVIDIA plugin's config that cut no slices: checked, and answered with sharer's own setting."""

from __future__ import annotations

from collections.abc import Mapping

from sharer.core.policy.fields import Block
from sharer.core.policy.located import LocatedList, LocatedNode
from sharer.core.policy.values import Reader, boolean, integer, one_of, text


def with_prefix(name: str) -> str:
    """A resource name as the plugin completes it.

    >>> with_prefix("gpu")
    'nvidia.com/gpu'
    """
    return name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"


def _words(node: LocatedNode) -> tuple[str, ...]:
    """A text, or a list of texts."""
    return tuple(text(item) for item in node.items) if isinstance(node, LocatedList) else (text(node),)


_AGENT = "has no effect in a policy; it is a setting of the agent: "
_FLAGS: Mapping[str, tuple[Reader[object], str]] = {
    "failOnInitError": (boolean, "has no effect: the agent waits for the driver as long as it takes, and says so"),
    "mpsRoot": (text, _AGENT + "--mps-dir"),
    "nvidiaDriverRoot": (text, _AGENT + "--driver-library, --host-root"),
    "nvidiaDevRoot": (text, _AGENT + "--dev-root"),
    "gdrcopyEnabled": (boolean, _AGENT + "--injection"),
    "gdsEnabled": (boolean, _AGENT + "--injection"),
    "mofedEnabled": (boolean, _AGENT + "--injection"),
    "useNodeFeatureAPI": (boolean, "has no effect: sharer sets no feature labels; keep gpu-feature-discovery for them"),
    "deviceDiscoveryStrategy": (text, "has no effect: GPUs are found with NVML; see --driver-library"),
}
_PLUGIN_FLAGS: Mapping[str, tuple[Reader[object], str]] = {
    "passDeviceSpecs": (boolean, _AGENT + "--injection device-nodes"),
    "deviceListStrategy": (_words, _AGENT + "--injection"),
    "deviceIDStrategy": (
        one_of("uuid", "index"),
        "has no effect: containers get UUIDs, indices change; see --injection",
    ),
    "cdiAnnotationPrefix": (text, _AGENT + "--injection cdi, --cdi-kind"),
    "nvidiaCTKPath": (text, "has no effect: CDI names are looked up in --cdi-dir, and no tool is run"),
    "containerDriverRoot": (text, _AGENT + "--driver-library"),
    "kubeletSocket": (text, _AGENT + "--device-plugin-dir"),
    "cdiFeatureFlags": (_words, _AGENT + "--cdi-dir"),
}


def check_flags(flags: Block) -> None:
    """`flags`, all but `migStrategy`: one warning for each key that is there."""
    _warn(flags, _FLAGS)
    if flags.has("plugin"):
        _warn(flags.block("plugin"), _PLUGIN_FLAGS)
    if flags.has("gfd"):
        flags.block("gfd")
        flags.warning("gfd", "has no effect: it configures gpu-feature-discovery, which can run beside sharer")


def _warn(block: Block, flags: Mapping[str, tuple[Reader[object], str]]) -> None:
    for key, (read, advice) in flags.items():
        if block.has(key):
            block.value(key, read, None)
            block.warning(key, advice)


def check_imex(root: Block) -> None:
    """`imex`: one warning if it is there."""
    if root.has("imex"):
        imex = root.block("imex")
        imex.values("channelIDs", integer(0), ())
        imex.value("required", boolean, None)
        root.warning("imex", _AGENT + "--injection")


def check_names(resources: Block) -> None:
    """`resources`: refused, unless it only repeats what the plugin does."""
    for key in ("gpus", "mig"):
        for entry in resources.blocks(key):
            pattern = entry.needed("pattern", text, '"*"')
            name = entry.needed("name", text, "gpu")
            plain = key == "gpus" and pattern == "*" and name is not None and with_prefix(name) == "nvidia.com/gpu"
            if not plain:
                entry.problem(
                    None,
                    "the NVIDIA plugin ignores names of one's own and offers nvidia.com/gpu and"
                    " nvidia.com/mig-<profile>; remove this to keep those, or write rules with match.product and"
                    " resource in sharer's own format",
                )
