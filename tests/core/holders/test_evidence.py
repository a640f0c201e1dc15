"""Of what the kubelet says, our own slices are kept."""

from __future__ import annotations

from sharer.core.holders.evidence import (
    CheckpointEntry,
    CheckpointReading,
    Holder,
    ListReading,
    only_our_entries,
    only_ours,
)

HOLDER = Holder(uid=None, namespace="default", pod="train", container="c")
OURS = ("nvidia.com/gpu.shared", "GPU-a::ts-0-1024")
RENAMED = ("example.com/old", "GPU-a::ts-1-1024")
FOREIGN = ("nvidia.com/gpu.shared", "GPU-a::0")
RDMA = ("rdma/hca", "mlx5_0")


def test_ours_are_the_slices_of_our_resources_and_all_ids_of_our_form() -> None:
    holders = dict.fromkeys((OURS, RENAMED, FOREIGN, RDMA), HOLDER)
    reading = ListReading(serial=1, holders=holders, pods=frozenset({("default", "train")}))
    found = only_ours(reading, {"nvidia.com/gpu.shared"})
    assert set(found.holders) == {OURS, RENAMED, FOREIGN}
    assert found.pods == {("default", "train")}, "every pod counts, with our slices or without"


def test_of_the_checkpoint_our_entries_and_every_plugins_registered_ids_are_kept() -> None:
    keys = (OURS, RENAMED, FOREIGN, RDMA)
    entries = tuple(CheckpointEntry(uid="u", container="c", resource=key[0], ids=(key[1],)) for key in keys)
    reading = CheckpointReading(serial=1, entries=entries, registered={"rdma/hca": ("mlx5_0",)})
    found = only_our_entries(reading, {"nvidia.com/gpu.shared"})
    assert [(one.resource, *one.ids) for one in found.entries] == [OURS, RENAMED, FOREIGN]
    assert found.registered == reading.registered
