"""Are there known holes in what the lock pins? Asked of pip-audit, which asks PyPI; what it cannot tell is no pass."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.proof import ROOT

NOT_AUDITED = 3
COMMAND = ["-m", "uv", "tool", "run", "--quiet", "pip-audit", "--no-deps", "--disable-pip", "--format", "json"]


def run() -> int:
    """Audit requirements.lock. Returns 0 only if every package of it was looked up and nothing was found."""
    command = [sys.executable, *COMMAND, "--requirement", "requirements.lock"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    status, lines = verdict(done.stdout, done.stderr)
    print(*(f"audit: {line}" for line in lines), sep="\n")
    return status


def verdict(answer: str, complaint: str) -> tuple[int, list[str]]:
    """The exit status, and what to say of what pip-audit printed: 1 a known hole, 3 a package not looked up."""
    try:
        found = json.loads(answer)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (complaint.strip().splitlines() or ["without a word"])[-1]
        return NOT_AUDITED, [f"not audited: pip-audit could not be run: {last}"]
    holes = [
        f"{one['name']} {one['version']}: {hole['id']}, fixed in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for one in found
        for hole in one.get("vulns", ())
    ]
    skipped = [one["name"] for one in found if "skip_reason" in one]
    if skipped or not found:
        holes.append(f"not audited: {len(skipped)} of {len(found)} packages ({', '.join(skipped[:3])}, …)")
        return 1 if len(holes) > 1 else NOT_AUDITED, holes
    return (1, holes) if holes else (0, [f"{len(found)} packages, no known hole"])
