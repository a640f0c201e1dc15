"""An API server beside a node: its Node, the policies' ConfigMap, and its pods as the kubelet reports them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sharer.simulation.apiserver import (
    CONFIG_MAP,
    NODE,
    POD,
    ApiServer,
    Object,
    config_map_object,
    container_object,
    node_object,
    pod_object,
)
from sharer.simulation.kubelet import ContainerKind, FakeKubelet, PodStatus
from tests.e2e.process import PATIENCE_S

NAMESPACE, CONFIG_MAP_NAME = "gpu", "policies"
SOURCE = f"configmap {NAMESPACE}/{CONFIG_MAP_NAME}"
_LOOK_S = 0.1  # between two looks at whether to end


class Api:
    """The API server of one node's cluster, and what its people do there."""

    def __init__(self, server: ApiServer, folder: Path, node_name: str) -> None:
        self.server = server
        self.node_name = node_name
        self._token, self._kubeconfig = folder / "token", folder / "kubeconfig"
        self.write_token("t1")
        self._kubeconfig.write_text(
            f"""
            {{apiVersion: v1, kind: Config, current-context: here,
             contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
             clusters: [{{name: here, cluster: {{server: "{server.url}"}}}}],
             users: [{{name: me, user: {{tokenFile: "{self._token}"}}}}]}}
            """
        )

    @property
    def flags(self) -> tuple[str, str]:
        """For an agent that follows this API server and takes its policy from there."""
        return self.only_pods, f"--policy-configmap={NAMESPACE}/{CONFIG_MAP_NAME}"

    @property
    def only_pods(self) -> str:
        """For an agent whose policy is a file."""
        return f"--kubernetes={self._kubeconfig}"

    def write_token(self, token: str) -> None:
        """As the kubelet renews a projected one."""
        self._token.write_text(token)

    def put_policies(self, **texts: str) -> None:
        """The ConfigMap's keys from now on."""
        self.server.put(CONFIG_MAP, config_map_object(CONFIG_MAP_NAME, texts, namespace=NAMESPACE))

    def put_node(self, annotations: Mapping[str, str] | None = None, *, uid: str = "node-uid", **labels: str) -> None:
        """The Node's labels and annotations of ours from now on: `policy="a100"` is sharer.dev/policy."""
        ours = {f"sharer.dev/{name}": value for name, value in labels.items()}
        self.server.put(NODE, node_object(self.node_name, uid=uid, labels=ours, annotations=annotations))

    def asked(self) -> dict[tuple[str, str | None], int]:
        """How many requests there were of each verb and resource."""
        return dict(self.server.counts())

    @contextlib.contextmanager
    def mirroring(self, kubelet: FakeKubelet) -> Iterator[None]:
        """Keep the API's pods like the kubelet's meanwhile."""
        ending = threading.Event()
        there: dict[tuple[str, str], PodStatus] = {}

        def now() -> dict[tuple[str, str], PodStatus]:
            return {(pod.namespace, pod.name): pod for pod in kubelet.pods()}

        def mirror() -> None:
            while not ending.is_set():
                try:
                    kubelet.wait_for(lambda: ending.is_set() or now() != there, _LOOK_S)
                except TimeoutError:
                    continue
                pods = now()
                for namespace, name in there.keys() - pods.keys():
                    self.server.delete(POD, name, namespace)
                for key, pod in pods.items():
                    if there.get(key) != pod:
                        self.server.put(POD, as_object(pod, self.node_name))
                there.clear()
                there.update(pods)

        thread = threading.Thread(target=mirror, name="pod-mirror", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join(PATIENCE_S)

    def wait(self, holds: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until this is so of the objects or the requests; nobody tells when to look again."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s; {self.asked()}"
            threading.Event().wait(0.02)


def as_object(pod: PodStatus, node_name: str) -> Object:
    """A pod of the kubelet as the API server has it. A container's limits are what it was given."""
    made = {
        one.name: container_object(
            one.name,
            {resource: len(ids) for resource, ids in one.ids.items()},
            sidecar=one.kind is ContainerKind.SIDECAR,
        )
        for one in pod.containers
    }
    return pod_object(
        pod.name,
        namespace=pod.namespace,
        uid=pod.uid,
        node=node_name,
        phase=pod.phase.value,
        containers=[made[one.name] for one in pod.containers if one.kind is ContainerKind.APP],
        init_containers=[made[one.name] for one in pod.containers if one.kind is not ContainerKind.APP],
    )


@contextlib.contextmanager
def open_api(folder: Path, node_name: str) -> Iterator[Api]:
    """An API server that has this Node, without labels."""
    with ApiServer().start() as server:
        api = Api(server, folder, node_name)
        api.put_node()
        yield api
