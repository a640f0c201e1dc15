"""sharer's words as protobuf, and back. Pure translation: the core has decided everything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sharer.core.edits import ContainerEdits
from sharer.core.ports.kubelet import ListedDevice, ResourceAnswers, ResourceOptions
from sharer.kubeletapi import deviceplugin_pb2 as api

VERSION = "v1beta1"  # the only one a kubelet accepts
SERVICE = "v1beta1.DevicePlugin"
_HEALTH = {True: "Healthy", False: "Unhealthy"}  # exact case: anything else reads as unhealthy


def list_message(devices: Sequence[ListedDevice]) -> bytes:
    """The bytes of a ListAndWatchResponse. Raises ValueError for a list that the kubelet would misread."""
    if len({device.id for device in devices}) != len(devices):
        raise ValueError("a device ID is listed twice; with unlike health the kubelet would count it twice")
    if any(device.numa_node is not None and device.numa_node < 0 for device in devices):
        raise ValueError("a NUMA node is negative; unknown is None, and -1 would make the pod unschedulable")
    return api.ListAndWatchResponse(devices=map(_device, devices)).SerializeToString()


def options_message(options: ResourceOptions) -> api.DevicePluginOptions:
    """The same for Register and for GetDevicePluginOptions: only the latter counts, but people compare them."""
    return api.DevicePluginOptions(
        pre_start_required=options.pre_start_required,
        get_preferred_allocation_available=options.preferred_allocation,
    )


def allocate(answers: ResourceAnswers, request: api.AllocateRequest) -> bytes:
    """The bytes of an AllocateResponse. Raises what the answers raise.

    One response for each container request, in order: with fewer, the kubelet leaks IDs (kubelet-contract §7).
    """
    return _allocate_message(tuple([answers.allocate(list(one.devices_ids)) for one in request.container_requests]))


def prefer(answers: ResourceAnswers, request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
    """One response for each container request, in order."""
    return api.PreferredAllocationResponse(
        container_responses=[
            api.ContainerPreferredAllocationResponse(
                deviceIDs=answers.prefer(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            )
            for one in request.container_requests
        ]
    )


def prefer_any(request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
    """A lawful answer that needs nobody: the must-includes, then the first available IDs in their own order."""
    return api.PreferredAllocationResponse(
        container_responses=[
            api.ContainerPreferredAllocationResponse(
                deviceIDs=list(dict.fromkeys([*one.must_include_deviceIDs, *sorted(one.available_deviceIDs)]))[
                    : max(one.allocation_size, 0)
                ]
            )
            for one in request.container_requests
        ]
    )


@lru_cache(maxsize=256)  # building a message costs a tenth of a whole call (measured); most nodes have fewer slices
def _allocate_message(containers: tuple[ContainerEdits, ...]) -> bytes:
    """Equal edits as equal bytes in every process: without `deterministic` the order of variables would differ."""
    response = api.AllocateResponse(container_responses=map(_container, containers))
    return response.SerializeToString(deterministic=True)


def _device(device: ListedDevice) -> api.Device:
    wire = api.Device(ID=device.id, health=_HEALTH[device.healthy])
    if device.numa_node is not None:
        wire.topology.nodes.add(ID=device.numa_node)
    return wire


def _container(edits: ContainerEdits) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(edits.env),
        mounts=[
            api.Mount(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
            for mount in edits.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
            for node in edits.device_nodes
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in edits.cdi_names],
    )
