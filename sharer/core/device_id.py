"""The device ID: a slice's name in the kubelet API, and the only thing Allocate is given.

    <uuid>::<strategy>-<replica>[-<limit MiB>[-<compute %>]]

The kubelet replays an ID for as long as the pod lives, over every restart of ours, so the ID itself carries what was
promised (DESIGN §2). `::` after the UUID is what metric exporters split on. At most 63 characters
(kubelet-contract §3). A share of compute without a memory limit leaves the limit empty: `…::mps-0--25`.
"""

from __future__ import annotations

import re
from dataclasses import field
from enum import StrEnum
from functools import lru_cache

from sharer.core.errors import RequestError
from sharer.core.values import dataclass

MAX_LENGTH = 63
_FORM = re.compile(
    r"(?P<uuid>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)::(?P<strategy>ts|mps|mig|ex)-(?P<replica>0|[1-9][0-9]*)"
    r"(?:-(?P<limit>[1-9][0-9]*)?(?:-(?P<percent>[1-9][0-9]?|100))?)?",
)


class Strategy(StrEnum):
    """How a slice comes from its GPU, as it stands in the ID."""

    TIME_SLICING = "ts"
    MPS = "mps"
    MIG = "mig"
    EXCLUSIVE = "ex"

    @property
    def policy_name(self) -> str:
        """The name that policies and reports use."""
        return {"ts": "time-slicing", "mps": "mps", "mig": "mig", "ex": "exclusive"}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DeviceId:
    """A slice's identity and its promise.

    >>> DeviceId.parse("GPU-5a3f::mps-3-20480-25")
    DeviceId(uuid='GPU-5a3f', strategy=<Strategy.MPS: 'mps'>, replica=3, limit_mib=20480, percent=25)
    >>> str(DeviceId(uuid="MIG-77b1", strategy=Strategy.MIG, replica=0))
    'MIG-77b1::mig-0'
    """

    uuid: str  # of the physical GPU or of the MIG device
    strategy: Strategy
    replica: int  # from 0
    limit_mib: int | None = None  # None: no memory limit is promised
    percent: int | None = None  # of the GPU's SMs, 1 to 100; None: no share is promised
    _text: str = field(init=False, repr=False, compare=False)  # made once: every step asks for every ID's

    def __post_init__(self) -> None:
        text = f"{self.uuid}::{self.strategy.value}-{self.replica}"
        if self.limit_mib is not None or self.percent is not None:
            text += f"-{'' if self.limit_mib is None else self.limit_mib}"
        object.__setattr__(self, "_text", text if self.percent is None else f"{text}-{self.percent}")

    @classmethod
    def parse(cls, text: str) -> DeviceId:
        """Read an ID. Raises RequestError for anything that `str` would not have written."""
        found = _FORM.fullmatch(text) if len(text) <= MAX_LENGTH else None
        limit, percent = (found["limit"], found["percent"]) if found else (None, None)
        if found is None or text.endswith("-"):
            raise RequestError(
                f"device ID {text!r} is not one of sharer's (<uuid>::<strategy>-<replica>[-<limit MiB>[-<compute %>]]);"
                " another plugin may have offered it under the same resource name"
            )
        parsed = cls(
            uuid=_same(found["uuid"]),
            strategy=Strategy(found["strategy"]),
            replica=int(found["replica"]),
            limit_mib=None if limit is None else int(limit),
            percent=None if percent is None else int(percent),
        )
        object.__setattr__(parsed, "_text", text)  # the same one, which others have too
        return parsed

    @property
    def is_valid(self) -> bool:
        """Whether the kubelet API and the grammar can carry it: false for a UUID with other characters or too long."""
        return len(self._text) <= MAX_LENGTH and _FORM.fullmatch(self._text) is not None

    def __str__(self) -> str:
        return self._text


@lru_cache(maxsize=64)
def _same(uuid: str) -> str:
    """One text for all slices of a device: thousands of IDs have a few UUIDs."""
    return uuid


def uuid_part(text: str) -> str:
    """The UUID in front of `::`, in whoever's ID: other plugins write theirs so, too.

    >>> uuid_part("GPU-5a3f::mps-3-20480"), uuid_part("GPU-5a3f::0"), uuid_part("GPU-5a3f")
    ('GPU-5a3f', 'GPU-5a3f', 'GPU-5a3f')
    """
    return text.partition("::")[0]


def slice_part(text: str) -> str:
    """What tells it apart from other slices of its device: strategy, replica and promise, as they are written.

    >>> slice_part("GPU-5a3f::mps-3-20480"), slice_part("GPU-5a3f")
    ('mps-3-20480', '')
    """
    return text.partition("::")[2]


def recognise(text: str) -> DeviceId | None:
    """The device ID that this text is; None: none of ours, another plugin's."""
    try:
        return DeviceId.parse(text)
    except RequestError:
        return None
