"""The pods of a fake kubelet as an API server's objects."""

from __future__ import annotations

from sharer.simulation.apiserver import ApiServer, Kind, Object, container_object, pod_object
from sharer.simulation.kubelet import ContainerKind, ContainerSpec, FakeKubelet, PodStatus
from tests.faults.steps import StartPod


class Mirror:
    """Keeps the API's pods like the kubelet's: call `follow` whenever something may have happened."""

    def __init__(self, api: ApiServer, kubelet: FakeKubelet, kind: Kind) -> None:
        self._api, self._kubelet, self._kind = api, kubelet, kind
        self._specs: dict[str, StartPod] = {}
        self._phases: dict[str, tuple[str, str]] = {}  # name -> UID and phase, as the API has them

    def announce(self, step: StartPod) -> None:
        """A pod that the kubelet will soon have; its limits are told by nobody else."""
        self._specs[step.name] = step

    def follow(self) -> None:
        """Bring the API up to date."""
        pods = {pod.name: pod for pod in self._kubelet.pods()}
        for gone in self._phases.keys() - pods.keys():
            del self._phases[gone]
            self._api.delete(self._kind, gone)
        for name, pod in pods.items():
            seen = (pod.uid, pod.phase.value)
            if self._phases.get(name) != seen:
                self._phases[name] = seen
                self._api.put(self._kind, self._object(pod, self._specs[name]))

    def _object(self, pod: PodStatus, spec: StartPod) -> Object:
        kinds = {one.name: one.kind for one in pod.containers}
        return pod_object(
            pod.name,
            uid=pod.uid,
            node=self._kubelet.settings.node_name,
            phase=pod.phase.value,
            containers=[_container(one, kinds[one.name]) for one in spec.containers],
            init_containers=[_container(one, kinds[one.name]) for one in spec.init_containers],
        )


def _container(spec: ContainerSpec, kind: ContainerKind) -> Object:
    return container_object(spec.name, spec.limits, sidecar=kind is ContainerKind.SIDECAR)
