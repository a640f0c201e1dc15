"""The flags about injection, and their variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sharer.core.edits import OptIns
from sharer.settings import Settings, read_settings


def settings(*flags: str, **variables: str) -> Settings:
    environment: Mapping[str, str] = {f"SHARER_AGENT_{name}": value for name, value in variables.items()}
    return read_settings(flags, environment)


def test_by_default_nothing_is_given_besides_and_the_directories_are_the_runtime_s_own() -> None:
    default = settings()
    assert (default.cdi_dir, default.cdi_kind, default.opt_ins) == (None, "nvidia.com/gpu", OptIns())


def test_cdi_dir_can_be_repeated_and_keeps_its_order() -> None:
    assert settings("--cdi-dir", "/b", "--cdi-dir", "/a").cdi_dir == (Path("/b"), Path("/a"))


def test_as_a_variable_cdi_dir_is_a_comma_list() -> None:
    assert settings(CDI_DIR="/etc/cdi, /run/cdi").cdi_dir == (Path("/etc/cdi"), Path("/run/cdi"))


def test_the_flags_replace_the_variable_s_list_and_do_not_add_to_it() -> None:
    assert settings("--cdi-dir", "/a", "--cdi-dir", "/b", CDI_DIR="/x").cdi_dir == (Path("/a"), Path("/b"))


def test_opt_ins_are_switches_and_a_list_of_channels() -> None:
    everything = settings("--gds", "--mofed=true", "--imex-channels", "2,0", GDRCOPY="true").opt_ins
    assert everything == OptIns(imex_channels=(0, 2), gds=True, mofed=True, gdrcopy=True)


def test_a_flag_can_switch_off_what_the_variable_switched_on() -> None:
    assert settings("--gds=false", GDS="true").opt_ins == OptIns()


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        (["--cdi-kind", "nvidia.com"], {}, "is not a CDI kind"),
        (["--cdi-kind", "nvidia.com/gpu=all"], {}, "is not a CDI kind"),
        (["--imex-channels", "all"], {}, "is not the number of an IMEX channel"),
        (["--gds=yes"], {}, "is not true or false"),
        ([], {"GDS": ""}, "is not true or false"),
        ([], {"CDI_DIR": ""}, "names no directory"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    flags: list[str], variables: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        settings(*flags, **variables)
    assert refused.value.code == 2
    assert words in capsys.readouterr().err
