"""Of what the kubelet says, our own slices are kept."""

from __future__ import annotations

from sharer.core.holders.evidence import (
    only_our_entries,
    only_ours,
)
from tests.core.evidence import SHARED, checkpoint, given_to, listed

OURS = (SHARED, "GPU-a::ts-0-1024")
RENAMED = ("example.com/old", "GPU-a::ts-1-1024")
FOREIGN = (SHARED, "GPU-a::0")
RDMA = ("rdma/hca", "mlx5_0")


def test_ours_are_the_slices_of_our_resources_and_all_ids_of_our_form() -> None:
    found = only_ours(listed(dict.fromkeys((OURS, RENAMED, FOREIGN, RDMA), "train")), {SHARED})
    assert set(found.holders) == {OURS, RENAMED, FOREIGN}
    assert found.pods == {("default", "train")}, "every pod counts, with our slices or without"


def test_of_the_checkpoint_our_entries_and_every_plugins_registered_ids_are_kept() -> None:
    entries = (given_to("u", key) for key in (OURS, RENAMED, FOREIGN, RDMA))
    reading = checkpoint(*entries, registered={"rdma/hca": ["mlx5_0"]})
    found = only_our_entries(reading, {SHARED})
    assert [(one.resource, *one.ids) for one in found.entries] == [OURS, RENAMED, FOREIGN]
    assert found.registered == reading.registered
