"""`sharer policy apply`, `rollback` and `hold`: what steers a fleet through the API server, one command each."""

from __future__ import annotations

import difflib

import click

from sharer.adapters.kube.calls import CONFIG_MAPS, NODES
from sharer.adapters.yaml_text import read_policy_text
from sharer.cli.cluster_access import access_options, open_cluster
from sharer.cli.inputs import read_text
from sharer.cli.options import FILE
from sharer.core.change.choice import DEFAULT_NAME, HOLD_LABEL
from sharer.core.errors import InputError
from sharer.core.policy.steps import Replacement, go_back, replace_text
from sharer.core.quantities import duration

_CONFIG_MAP = click.option(
    "--configmap", required=True, metavar="NAMESPACE/NAME", envvar="SHARER_POLICY_CONFIGMAP",
    help="The ConfigMap with the policies, as the agents' --policy-configmap.",
)  # fmt: skip
_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.command(epilog="Example: sharer policy apply new.yaml --configmap gpu/policies --name a100")
@click.argument("file", type=FILE, metavar="FILE")
@_CONFIG_MAP
@click.option("--name", default=DEFAULT_NAME, show_default=True, metavar="NAME",
              help="For the nodes with this name in their label sharer.dev/policy.")  # fmt: skip
@_YES
@access_options
def apply(file: str, configmap: str, name: str, yes: bool, kubeconfig: str | None, kube_context: str | None) -> None:
    """Put a policy into the cluster, and remember the one before.

    Checked first, shown as a difference, and asked about. Nodes take it at their turn within its rollout.window.
    Needs the rights to get and patch that ConfigMap. What Helm or GitOps writes there is theirs: change it there.
    """
    text, source = read_text(file)
    read_policy_text(text, source)
    place, namespace, config_map = _place(configmap)
    with open_cluster(kubeconfig, kube_context) as client:
        from sharer.adapters.kube.wire import ConfigMap

        found = client.get(CONFIG_MAPS, config_map, ConfigMap, namespace=namespace)
        step = replace_text(place, found.data or {}, name, text.decode())
        _confirm(place, step, yes)
        client.merge(CONFIG_MAPS, config_map, step.fields(found.metadata.resource_version), namespace=namespace)
    click.echo(f"{place} key {step.key}: replaced; `sharer policy rollback --configmap {configmap}` takes it back")


@click.command(epilog="Example: sharer policy rollback --configmap gpu/policies")
@_CONFIG_MAP
@_YES
@access_options
def rollback(configmap: str, yes: bool, kubeconfig: str | None, kube_context: str | None) -> None:
    """Take the last `sharer policy apply` back.

    The text before it is recorded in the ConfigMap's annotation sharer.dev/previous. It is checked, shown as a
    difference, and asked about; a second rollback goes forward again. What was changed with another tool leaves no
    record. Needs the rights to get and patch that ConfigMap.
    """
    place, namespace, config_map = _place(configmap)
    with open_cluster(kubeconfig, kube_context) as client:
        from sharer.adapters.kube.wire import ConfigMap

        found = client.get(CONFIG_MAPS, config_map, ConfigMap, namespace=namespace)
        step = go_back(place, found.data or {}, found.metadata.annotations or {})
        policy = read_policy_text(step.after.encode(), f"{place} key {step.key}, as recorded")
        _confirm(place, step, yes)
        client.merge(CONFIG_MAPS, config_map, step.fields(found.metadata.resource_version), namespace=namespace)
    window = f"within {duration(policy.rollout_window_s)}" if policy.rollout_window_s else "at once"
    click.echo(f"{place} key {step.key}: as before; nodes take it {window}")


@click.command(
    epilog="""\b
Example: sharer policy hold gpu-7
         sharer policy hold gpu-7 --release"""
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--release", is_flag=True, help="Let the wanted policy take effect again.")
@access_options
def hold(nodes: tuple[str, ...], release: bool, kubeconfig: str | None, kube_context: str | None) -> None:
    """Keep the policy in force on a node, whatever is wanted.

    By the node's label sharer.dev/hold, which the agent obeys. Needs the right to patch nodes.
    """
    with open_cluster(kubeconfig, kube_context) as client:
        for node in nodes:
            client.merge(NODES, node, {"metadata": {"labels": {HOLD_LABEL: None if release else "true"}}})
            said = "takes the policy that is wanted" if release else "keeps the policy in force; --release ends that"
            click.echo(f"{node}: {said}")


def _place(configmap: str) -> tuple[str, str, str]:
    """Its name for people, its namespace and its name."""
    namespace, slash, name = configmap.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InputError(f"--configmap {configmap!r} is not NAMESPACE/NAME, such as gpu/policies")
    return f"configmap {configmap}", namespace, name


def _confirm(place: str, step: Replacement, yes: bool) -> None:
    """Show what would change. Ends the command unless the answer is yes."""
    difference = difflib.unified_diff(
        (step.before or "").splitlines(),
        step.after.splitlines(),
        f"{place} key {step.key}, now",
        f"{place} key {step.key}, then",
        lineterm="",
    )
    for line in difference:
        click.echo(line)
    if not yes:
        click.confirm("Replace it?", abort=True, err=True)
