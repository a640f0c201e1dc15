"""Which resource names the kubelet accepts (kubelet-contract §2.3). Apart from the agent's own check on purpose."""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def is_extended_resource(name: str) -> bool:
    """Whether a plugin may register this name.

    >>> [is_extended_resource(n) for n in ("a.io/g_p.u", "gpu", "x.kubernetes.io/g", "requests.a/g", "A.io/g", "a/b/c")]
    [True, False, False, False, False, False]
    """
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    prefix, _, last = f"requests.{name}".partition("/")
    return (
        len(prefix) <= 253
        and _SUBDOMAIN.fullmatch(prefix) is not None
        and len(last) <= 63
        and _NAME.fullmatch(last) is not None
    )
