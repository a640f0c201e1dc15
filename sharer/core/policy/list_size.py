"""How large a resource's device list can become on its way to the kubelet, which refuses one above 4 MiB.

A list that fits while every device is Healthy may not fit once all are Unhealthy, so the worst case counts: each
device Unhealthy, on one NUMA node (kubelet-contract §3). An ID has at most 63 bytes, so every length is one byte.
"""

from __future__ import annotations

MAX_LIST_BYTES = 4_194_304  # gRPC's default for a received message, which the kubelet does not raise

_DEVICE_BYTES = 2 + 2 + 11 + 6  # headers of device and ID, health "Unhealthy", topology with one NUMA node of 1 to 127


def worst_case_numbered_list_bytes(rest_bytes: int, count: int) -> int:
    """Bytes of a ListAndWatch message with `count` IDs that have `rest_bytes` beside their number, numbered from 0.

    All are Unhealthy, and each is on one NUMA node of 1 to 127. The IDs need not be made for it.

    >>> worst_case_numbered_list_bytes(len("GPU-5a3f::ts-"), 2)  # GPU-5a3f::ts-0 and GPU-5a3f::ts-1
    70
    """
    digits, ten_power = count, 10  # every number has one digit, those from 10 on a second, those from 100 on a third …
    while ten_power < count:
        digits += count - ten_power
        ten_power *= 10
    return count * (_DEVICE_BYTES + rest_bytes) + digits


def most_numbered_ids(rest_bytes: int) -> int:
    """How many such IDs fit into one list in the worst case."""
    low, high = 0, MAX_LIST_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if worst_case_numbered_list_bytes(rest_bytes, middle) <= MAX_LIST_BYTES:
            low = middle
        else:
            high = middle - 1
    return low
