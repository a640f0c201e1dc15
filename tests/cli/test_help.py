from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from sharer.cli.group import COMMANDS, sharer
from tests.cli.running import run


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


def imported_by(*arguments: str) -> set[str]:
    """The top-level packages in memory when `sharer` with these arguments is done."""
    code = (
        "import sys, atexit; from sharer.cli import main\n"
        "atexit.register(lambda: print(' '.join({name.partition('.')[0] for name in sys.modules}), file=sys.stderr))\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("path", [(), *commands(sharer)], ids=" ".join)
def test_every_command_explains_itself_with_an_example(path: tuple[str, ...]) -> None:
    if path == ("agent",):
        done = subprocess.run(
            [sys.executable, "-m", "sharer", "agent", "--help"], capture_output=True, text=True, check=True
        )
        shown = done.stdout
    else:
        ran = run(*path, "--help")
        assert ran.status == 0
        shown = ran.out
    assert f"sharer {' '.join(path)}" in shown
    assert "example:" in shown.lower()


@pytest.mark.parametrize("path", [*commands(sharer)], ids=" ".join)
def test_a_path_that_may_not_be_read_is_no_error_before_it_is_needed(path: tuple[str, ...]) -> None:
    """Else who is not root could ask nothing on a node with an agent: its --run-dir, a default, is root's."""
    command: click.Command | None = sharer
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    paths = [one for one in command.params if isinstance(one.type, click.Path)]
    assert [one.name for one in paths if isinstance(one.type, click.Path) and one.type.readable] == []


def test_the_list_of_commands_says_what_each_command_says_of_itself() -> None:
    context = click.Context(sharer)
    for name, (_, help_line) in COMMANDS.items():
        command = sharer.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == help_line


def test_an_unknown_command_is_wrong_input() -> None:
    ran = run("frobnicate")
    assert (ran.status, ran.out) == (2, "")
    assert "No such command 'frobnicate'" in ran.err


def test_a_command_with_a_slip_is_told_the_nearest_one() -> None:
    ran = run("simulat")
    assert (ran.status, ran.out) == (2, "")
    assert "No such command 'simulat'. Did you mean 'simulate'?" in ran.err


def test_the_version_is_shown_also_where_the_package_is_not_installed() -> None:
    ran = run("--version")
    assert (ran.status, ran.out.split()[0]) == (0, "sharer")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["policy", "check", "--help"]], ids=" ".join)
def test_help_that_cannot_be_written_is_one_sentence_and_a_failure(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "sharer", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ran.returncode, ran.stderr) == (1, "what is said cannot be written: No space left on device\n")


def test_the_help_imports_no_command_and_nothing_heavy() -> None:
    assert imported_by("--help").isdisjoint({"grpc", "google", "yaml", "pynvml", "rich", "msgspec"})


def test_the_agent_imports_none_of_the_command_line_s_libraries() -> None:
    """DESIGN §10: the agent's memory is measured."""
    assert imported_by("agent", "--help").isdisjoint({"click", "rich"})


def test_policy_check_needs_neither_grpc_nor_nvml() -> None:
    assert imported_by("policy", "check", "--help").isdisjoint({"grpc", "google", "pynvml", "rich"})
