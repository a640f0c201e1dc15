"""deploy/manifests: the chart's profiles as plain files, for `kubectl apply -f`, without what only Helm needs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.deploy.chart import CHART, PROFILES, template
from tests.tasks import ROOT

FOLDER = ROOT / "deploy" / "manifests"
COPIES = {
    CHART / "files" / "gpunodes.sharer.dev.yaml": ROOT / "deploy" / "crds" / "gpunodes.sharer.dev.yaml",
    CHART / "files" / "default-policy.yaml": ROOT / "config" / "default.yaml",
}
"""Files of the chart, which cannot reach out of its folder, and what they are copies of."""

_HELM_ONLY = re.compile(r"^ *(helm\.sh/[a-z-]+|app\.kubernetes\.io/managed-by): .*\n", re.MULTILINE)


def write() -> None:
    """Bring the chart's copies and the manifests up to date."""
    for copy, original in COPIES.items():
        shutil.copy(original, copy)
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)


def differences() -> list[str]:
    """What `write` would change, one sentence a file."""
    stale = [
        f"{_name(copy)} is not {_name(original)}: run `python -m tests manifests`"
        for copy, original in COPIES.items()
        if not copy.exists() or copy.read_bytes() != original.read_bytes()
    ]
    wanted = rendered()
    found = {path.name: path.read_text() for path in FOLDER.glob("*")}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in wanted:
            stale.append(f"deploy/manifests/{name} comes from no profile: delete it")
        elif wanted[name] != found.get(name):
            stale.append(f"deploy/manifests/{name} is not what the chart renders: run `python -m tests manifests`")
    return stale


def rendered() -> dict[str, str]:
    """The manifests by file name."""
    return {f"{profile}.yaml": _plain(profile) for profile in PROFILES}


def _plain(profile: str) -> str:
    text = template({"namespace": {"create": True}}, of=profile)
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    text = _without_helm(text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n{2,}", "\n", text)
    head = (
        f"# Made by `python -m tests manifests` from the chart, profile {profile}. Name an image of yours:\n"
        f"#   sed 's|registry.example/sharer|REGISTRY/sharer|' deploy/manifests/{profile}.yaml | kubectl apply -f -\n"
    )
    return head + text.strip() + "\n"


def _without_helm(text: str) -> str:
    """Without Helm's own labels and annotations, and without the keys that held nothing else."""
    lines = _HELM_ONLY.sub("", text).splitlines(keepends=True)
    kept = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_key = re.fullmatch(r" *(annotations|labels): *\n", line)
        indent = len(line) - len(line.lstrip())
        if is_key and len(following) - len(following.lstrip()) <= indent:
            continue
        kept.append(line)
    return "".join(kept)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))
