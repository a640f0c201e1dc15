"""Which resource names the kubelet accepts. A MIG rule's may hold `{profile}`: each profile its own resource (P20)."""

from __future__ import annotations

import re

PROFILE = "{profile}"

_SAMPLE_PROFILE = "7g.180gb.me.all"  # as long as profiles get, so that a checked template fits every one
_MAX_PREFIX = 253 - len("requests.")  # the kubelet checks "requests.<name>"
_MAX_NAME = 63
_LABEL = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_PREFIX = rf"{_LABEL}(?:\.{_LABEL})*"
_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"


def resource_name_problem(name: str) -> str | None:
    """Why the kubelet would refuse this resource name, or None if it accepts it (kubelet-contract §2.3).

    >>> resource_name_problem("nvidia.com/gpu.shared")
    >>> resource_name_problem("gpu")
    "has no prefix; write it like 'nvidia.com/gpu.shared'"
    """
    prefix, slash, rest = name.partition("/")
    if not slash:
        return "has no prefix; write it like 'nvidia.com/gpu.shared'"
    if "/" in rest:
        return "has more than one '/'; exactly one stands between prefix and name"
    if "kubernetes.io/" in name:
        return "has a prefix that ends in kubernetes.io, which Kubernetes keeps for itself"
    if name.startswith("requests."):
        return "begins with 'requests.', which Kubernetes keeps for quotas"
    if len(prefix) > _MAX_PREFIX:
        return f"has a prefix of {len(prefix)} characters; at most {_MAX_PREFIX} are allowed"
    if re.fullmatch(_PREFIX, prefix) is None:
        return "has a prefix that is no domain name of lower-case letters, digits, '-' and '.'"
    if len(rest) > _MAX_NAME:
        return f"has {len(rest)} characters after the '/'; at most {_MAX_NAME} are allowed"
    if re.fullmatch(_NAME, rest) is None:
        return "must have letters, digits, '-', '_' and '.' after the '/', a letter or digit at both ends"
    return None


def resource_template_problem(template: str, *, mig: bool) -> str | None:
    """The same for the name in a rule, which for MIG may hold `{profile}` once, after the '/'."""
    if PROFILE not in template:
        return resource_name_problem(template)
    if not mig:
        return f"holds {PROFILE}, which only a rule with strategy: mig can fill in"
    if template.count(PROFILE) > 1 or PROFILE in template.partition("/")[0]:
        return f"must hold {PROFILE} only once, after the '/'"
    problem = resource_name_problem(template.replace(PROFILE, _SAMPLE_PROFILE))
    return None if problem is None else f"with a profile filled in, {problem}"
