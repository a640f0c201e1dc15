"""A checkpoint of a real kubelet."""

from __future__ import annotations

# As written by a real kubelet 1.36.2 (kubelet-contract §11).
REAL = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"6a9f3b1e-4f0d-4d64-9d0a-1b6a3f9d8c11","ContainerName":"c",'
    b'"ResourceName":"sharer.io/gpu","DeviceIDs":{"-1":["GPU-0::0"]},'
    b'"AllocResp":"ChYKDVNIQVJFUl9ERVZJQ0USBUdQVS0wKhEKD3NoYXJlci5pby9ncHU9MA=="}],'
    b'"RegisteredDevices":{"sharer.io/gpu":["GPU-0::0"]}},"Checksum":1208255127}'
)
