"""The structs of node.h for Python; a test compares their sizes with the compiler's."""

from __future__ import annotations

from ctypes import Structure, c_char, c_int32, c_uint8, c_uint32, c_uint64

MAX_GPUS, MAX_MIGS, MAX_LINKS, MAX_PROCESSES = 64, 16, 36, 64
MAX_FAULTS, MAX_EVENTS, MAX_COUNTERS, MAX_LIMITS = 64, 256, 4096, 4096
LINK_DOWN, LINK_TO_SWITCH = -1, -2
_UUID = _NAME = c_char * 96
_FUNCTION = c_char * 64


class CMig(Structure):
    """struct mig"""

    _fields_ = (
        ("uuid", _UUID),
        ("name", _NAME),
        ("profile", _NAME),
        ("memory_bytes", c_uint64),
        ("index", c_uint32),
        ("gpu_instance_id", c_uint32),
        ("compute_instance_id", c_uint32),
        ("gpu_slices", c_uint32),
        ("compute_slices", c_uint32),
        ("stale", c_uint32),
    )


class CProcess(Structure):
    """struct process"""

    _fields_ = (
        ("used_bytes", c_uint64),
        ("pid", c_uint32),
        ("gpu_instance_id", c_uint32),
        ("compute_instance_id", c_uint32),
        ("kind", c_uint32),
    )


class CGpu(Structure):
    """struct gpu"""

    _fields_ = (
        ("uuid", _UUID),
        ("name", _NAME),
        ("pci_bus_id", c_char * 32),
        ("memory_bytes", c_uint64),
        ("used_bytes", c_uint64),
        ("present", c_int32),
        ("has_memory", c_int32),
        ("minor_number", c_int32),
        ("major", c_int32),
        ("minor", c_int32),
        ("mig_enabled", c_int32),
        ("reports_events", c_int32),
        ("recovery_action", c_int32),
        ("fabric_state", c_int32),
        ("max_migs", c_uint32),
        ("mig_count", c_uint32),
        ("link_count", c_uint32),
        ("process_count", c_uint32),
        ("links", c_int32 * MAX_LINKS),
        ("migs", CMig * MAX_MIGS),
        ("processes", CProcess * MAX_PROCESSES),
    )


class CFault(Structure):
    """struct fault"""

    _fields_ = (
        ("function", _FUNCTION),
        ("uuid", _UUID),
        ("number", c_int32),
        ("code", c_int32),
        ("after", c_int32),
        ("times", c_int32),
        ("delay_ms", c_int32),
        ("hang", c_int32),
        ("hits", c_int32),
        ("padding", c_int32),
    )


class CEvent(Structure):
    """struct event"""

    _fields_ = (
        ("xid", c_uint64),
        ("slot", c_int32),
        ("gpu_instance_id", c_uint32),
        ("compute_instance_id", c_uint32),
        ("padding", c_uint32),
    )


class CCounter(Structure):
    """struct counter"""

    _fields_ = (("function", _FUNCTION), ("uuid", _UUID), ("calls", c_uint64))


class CLimit(Structure):
    """struct limit"""

    _fields_ = (
        ("path", c_char * 512),
        ("inode", c_uint64),
        ("soft", c_uint64),
        ("hard", c_uint64),
        ("used", c_uint64),
        ("slot", c_uint32),
        ("padding", c_uint32),
    )


class CNode(Structure):
    """struct node, without the lock at its end"""

    _fields_ = (
        ("changes", c_uint32),
        ("calls", c_uint32),
        ("driver_version", _NAME),
        ("gpu_count", c_uint32),
        ("fault_count", c_uint32),
        ("counter_count", c_uint32),
        ("limit_backend", c_uint32),
        ("limit_count", c_uint32),
        ("padding", c_uint32),
        ("event_count", c_uint64),
        ("order", c_uint32 * MAX_GPUS),
        ("modes", c_uint32 * MAX_GPUS),
        ("ancestors", c_uint8 * MAX_GPUS * MAX_GPUS),
        ("faults", CFault * MAX_FAULTS),
        ("events", CEvent * MAX_EVENTS),
        ("counters", CCounter * MAX_COUNTERS),
        ("limits", CLimit * MAX_LIMITS),
        ("gpus", CGpu * MAX_GPUS),
    )


STRUCTS = (CMig, CProcess, CGpu, CFault, CEvent, CCounter, CLimit)
