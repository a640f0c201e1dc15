"""Which cluster a command is about, and who asks: `--context`, `--kubeconfig`, as with kubectl."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sharer.adapters.kube.access import Kubeconfig, choose_user_access
from sharer.cli.options import FILE
from sharer.core.api_error import ApiError
from sharer.core.errors import InputError

if TYPE_CHECKING:
    from sharer.adapters.kube.client import KubeClient

_Command = TypeVar("_Command", bound=Callable[..., Any])


def access_options(command: _Command) -> _Command:
    """`--context` and `--kubeconfig`."""
    for option in (
        click.option("--kubeconfig", metavar="FILE", type=FILE,
                     help="Who asks which cluster. Default: $KUBECONFIG, ~/.kube/config, the pod's service account."),
        click.option("--context", "kube_context", metavar="NAME", shell_complete=complete_context,
                     help="A context of the kubeconfig. Default: its current one."),
    ):  # fmt: skip
        command = option(command)
    return command


def has_access(kubeconfig: str | None, context: str | None) -> bool:
    """Whether anything says how to reach a cluster."""
    return choose_user_access(kubeconfig, context, os.environ) is not None


@contextlib.contextmanager
def open_cluster(kubeconfig: str | None, context: str | None) -> Iterator[KubeClient]:
    """The API server. Raises InputError where nothing, or no good file, says where it is; asking may raise ApiError."""
    from sharer.adapters.kube.connect import connect  # 0.2 s

    access = choose_user_access(kubeconfig, context, os.environ)
    if access is None:
        raise InputError(
            "nothing says which cluster is meant: there is no ~/.kube/config, KUBECONFIG is not set, and this is no"
            " pod. Name one with --kubeconfig"
        )
    if isinstance(access, Kubeconfig) and not any(map(os.path.exists, str(access.path).split(os.pathsep))):
        raise InputError(f"there is no kubeconfig {access.path}. Name one with --kubeconfig, or with KUBECONFIG")
    with contextlib.closing(connect(access, user_agent="sharer-cli")) as client:
        if isinstance(access, Kubeconfig):
            try:
                client.server()
            except ApiError as error:
                raise InputError(str(error)) from error
        yield client


def complete_context(context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """The contexts of the kubeconfig that is named before, or that kubectl would take."""
    import yaml

    home = os.environ.get("HOME", "/")
    found = []
    named = context.params.get("kubeconfig") or os.environ.get("KUBECONFIG") or f"{home}/.kube/config"
    for path in named.split(os.pathsep):
        with contextlib.suppress(OSError, yaml.YAMLError, AttributeError, TypeError, KeyError):
            found += [str(one["name"]) for one in yaml.safe_load(Path(path).read_bytes())["contexts"]]
    return [name for name in found if name.startswith(incomplete)]
