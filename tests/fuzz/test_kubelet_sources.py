"""Who holds what, by a damaged kubelet: the checkpoint file and the answer of `List`. Damage is never "nobody"."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharer.adapters.checkpoint import FILE_NAME, Checkpoint
from sharer.adapters.podresources import PodResources
from sharer.core.errors import NodeError
from sharer.core.holders.evidence import CheckpointReading, ListReading
from sharer.kubeletapi import podresources_pb2 as pb
from tests.adapters.real_checkpoint import REAL
from tests.fakes.no_watch import NoWatch
from tests.fuzz.mutations import Json, altered, as_bytes, damaged

ENTRY = json.loads(REAL)["Data"]["PodDeviceEntries"][0]
TWO: Json = {
    "Data": {
        "PodDeviceEntries": [ENTRY, {**ENTRY, "ContainerName": "d", "DeviceIDs": {"0": ["a", "b"], "1": ["b"]}}],
        "RegisteredDevices": {"sharer.io/gpu": ["GPU-0::0", "a", "b"]},
    },
    "Checksum": 1,
}

# -- the checkpoint


def parse(text: bytes, folder: Path) -> CheckpointReading | None:
    """None: refused in words. Anything but NodeError is a failure."""
    path = folder / FILE_NAME
    path.write_bytes(text)
    refused = ""
    try:
        found = Checkpoint(path, NoWatch()).read()
    except NodeError as error:
        found, refused = None, str(error)
    assert (found is None) == ("is damaged" in refused)
    return found


@given(damaged([REAL, as_bytes(TWO)]))
def test_a_checkpoint_that_a_disk_has_damaged_is_read_or_said_to_be_damaged(
    tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    """P32."""
    found = parse(text, tmp_path_factory.mktemp("c"))
    if found is not None and not found.entries:
        assert json.loads(text)["Data"].get("PodDeviceEntries") in (None, []), (
            "nobody holds anything only if it says so"
        )


@given(altered([json.loads(REAL), TWO]))
def test_a_checkpoint_of_another_version_is_read_or_said_to_be_damaged(
    tmp_path_factory: pytest.TempPathFactory, document: Json
) -> None:
    """P32: whatever is read has texts where texts belong, so that nothing behind it stumbles."""
    found = parse(as_bytes(document), tmp_path_factory.mktemp("c"))
    for entry in found.entries if found is not None else ():
        assert all(isinstance(one, str) for one in (entry.uid, entry.container, entry.resource, *entry.ids))
        assert len(set(entry.ids)) == len(entry.ids)


# -- podresources

ANSWER = pb.ListPodResourcesResponse(
    pod_resources=[
        pb.PodResources(
            name=f"train-{number}",
            namespace="default",
            containers=[
                pb.ContainerResources(
                    name="main",
                    devices=[
                        pb.ContainerDevices(
                            resource_name="nvidia.com/gpu.shared",
                            device_ids=[f"GPU-5a3f::ts-{number}-20480"],
                            topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=0)]),
                        )
                    ],
                    cpu_ids=[1, 2],
                )
            ],
        )
        for number in range(3)
    ]
).SerializeToString()


class RawLister(grpc.GenericRpcHandler):
    """A kubelet whose every answer is these bytes."""

    def __init__(self) -> None:
        self.answer = b""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: self.answer)


Ask = Callable[[bytes], ListReading | None]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="s-", dir="/tmp"))
        pool = closing.enter_context(futures.ThreadPoolExecutor(2))
        lister, server = RawLister(), grpc.server(pool)
        server.add_generic_rpc_handlers((lister,))
        server.add_insecure_port(f"unix:{folder}/k.sock")
        server.start()
        closing.callback(lambda: server.stop(None).wait())
        source = PodResources(Path(folder) / "k.sock")
        os.utime(f"{folder}/k.sock")

        def give(answer: bytes) -> ListReading | None:
            lister.answer = answer
            said = "a sentence of some words and no less"
            try:
                found = source.read()
            except NodeError as error:
                found, said = None, str(error)
            assert len(said.split()) > 5
            return found

        yield give


def test_an_answer_that_is_whole_is_read(ask: Ask) -> None:
    found = ask(ANSWER)
    assert found is not None
    assert len(found.holders) == 3


@given(damaged([ANSWER]) | st.binary(max_size=60))
def test_a_damaged_answer_of_the_kubelet_is_read_or_no_news(ask: Ask, text: bytes) -> None:
    """Protobuf reads many wrong bytes: what it reads is whole, or it is an error."""
    found = ask(text)
    if found is not None:
        whole = pb.ListPodResourcesResponse.FromString(text)
        assert found.pods == {(pod.namespace, pod.name) for pod in whole.pod_resources}
        assert {key for key, _ in found.holders.items()} == {
            (row.resource_name, one)
            for pod in whole.pod_resources
            for container in pod.containers
            for row in container.devices
            for one in row.device_ids
        }
