"""helm and kubectl are there wherever the lock is installed."""

from __future__ import annotations

import json
import subprocess

from tests.deploy import tools


def test_kubectl_is_a_program_of_a_version_that_sharer_supports() -> None:
    shown = subprocess.run(
        [tools.kubectl(), "version", "--client", "-o", "json"], capture_output=True, check=True
    ).stdout
    assert json.loads(shown)["clientVersion"]["gitVersion"].startswith("v1.36.")


def test_helm_is_a_program_of_the_fourth_generation() -> None:
    shown = subprocess.run([tools.helm(), "version", "--short"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("v4.")
