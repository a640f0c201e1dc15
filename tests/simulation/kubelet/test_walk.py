"""Whatever happens in whatever order, the fake kubelet's own books stay right (kubelet-contract §7, §9, §11)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sharer.kubeletapi import deviceplugin_pb2 as pb
from sharer.simulation.kubelet import CheckpointEntry, ContainerSpec, Phase, read_checkpoint, write_checkpoint
from tests.fakes.bare_plugin import BarePlugin, allocation
from tests.simulation.kubelet.node import GPU, Node, fake_node

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["start", "start with init", "end", "delete", "force", "restart container", "kubelet", "plugin"]
        ),
        st.integers(0, 5),
    ),
    max_size=25,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_no_id_is_on_record_for_two_active_pods_and_every_container_keeps_its_answer(
    steps: list[tuple[str, int]],
) -> None:
    with fake_node() as node:
        plugin = node.plugin("abcdef")
        plugin.on_allocate = lambda ids: allocation(envs={"IDS": ",".join(sorted(ids))})
        node.register(plugin)
        for number, (step, which) in enumerate(steps):
            take(node, plugin, step, which, number)
            check(node)


def take(node: Node, plugin: BarePlugin, step: str, which: int, number: int) -> None:
    kubelet = node.kubelet
    pods = [pod.name for pod in kubelet.pods() if pod.phase is Phase.RUNNING]
    name = pods[which % len(pods)] if pods else None
    if step == "start":
        kubelet.start_pod(f"p{number}", {GPU: which})
    elif step == "start with init":
        init = [ContainerSpec(name="i", limits={GPU: 1}), ContainerSpec(name="s", limits={GPU: 1}, sidecar=True)]
        kubelet.start_pod(f"p{number}", {GPU: which}, init_containers=init)
    elif step == "kubelet":
        kubelet.restart()
        plugin.stop()
        plugin.serve()
        node.register(plugin)
        kubelet.wait_for(lambda: kubelet.sources_ready)
    elif step == "plugin":
        plugin.stop()
        kubelet.wait_capacity(GPU, 6, 0)
        plugin.serve()
        node.register(plugin)
    elif name is not None and step == "end":
        kubelet.end_pod(name)
    elif name is not None and step == "delete":
        kubelet.delete_pod(name)
    elif name is not None and step == "force":
        kubelet.force_delete_pod(name)
    elif name is not None:
        kubelet.restart_container(name)


def check(node: Node) -> None:
    pods = {pod.uid: pod for pod in node.kubelet.pods() if pod.phase is Phase.RUNNING}
    records = node.kubelet.records()
    owners: dict[str, str] = {}
    for (uid, container, _), ids in records.items():
        assert node.kubelet.allocated(GPU) >= ids
        if uid in pods:
            assert all(owners.setdefault(i, uid) == uid for i in ids)
            assert set(pods[uid].ids(GPU, container)) == ids
            assert pods[uid].env(container) == {"IDS": ",".join(sorted(ids))}
    for pod in pods.values():
        for status in pod.containers:
            assert status.ids.keys() <= {GPU}
            assert (pod.uid, status.name, GPU) in records or not status.ids
    written, _ = read_checkpoint(node.kubelet.checkpoint)
    assert {(e.pod_uid, e.container) for e in written} >= {(uid, c) for uid, c, _ in records}


@given(
    entries=st.lists(
        st.builds(
            CheckpointEntry,
            pod_uid=st.text(),
            container=st.text(),
            resource=st.text(),
            ids_by_numa=st.dictionaries(st.integers(-1, 7), st.lists(st.text()).map(tuple)),
            response=st.builds(
                pb.ContainerAllocateResponse, envs=st.dictionaries(st.text(max_size=9), st.text(max_size=9))
            ),
        ),
        max_size=3,
    ),
    registered=st.dictionaries(st.text(), st.lists(st.text())),
)
def test_a_checkpoint_reads_back_as_it_was_written(
    entries: list[CheckpointEntry], registered: dict[str, list[str]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        path = Path(folder) / "kubelet_internal_checkpoint"
        write_checkpoint(path, entries, registered)
        assert read_checkpoint(path) == (entries, registered)
