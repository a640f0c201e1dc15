#include "library.h"

#include <stdio.h>
#include <string.h>

#define SWITCH_BUS_ID "00000000:05:00.0"

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER(count);
    *count = gpu_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct device found;
    const void *handle = users > 0 && index < gpu_count ? make_handle(order[index], -1) : NULL;
    nvmlReturn_t result = enter_device(__func__, handle, device != NULL, &found);
    if (result == NVML_SUCCESS)
        *device = (nvmlDevice_t)handle;
    return result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    ENTER_DEVICE(device, uuid);
    return give_text(uuid, length, d->is_mig ? d->mig.uuid : d->gpu.uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    ENTER_DEVICE(device, name);
    if (d->is_mig && d->mig.stale)
        return NVML_ERROR_INVALID_ARGUMENT;
    return give_text(name, length, d->is_mig ? d->mig.name : d->gpu.name);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
    ENTER_DEVICE(device, minorNumber);
    return d->is_mig ? NVML_ERROR_NOT_SUPPORTED : give_number(minorNumber, d->gpu.minor_number);
}

static nvmlReturn_t give_pci(nvmlPciInfo_t *pci, const char *bus_id)
{
    if (bus_id[0] == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busId, sizeof pci->busId, "%s", bus_id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xFFFFu,
             pci->bus & 0xFFu, pci->device & 0xFFu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(device, pci);
    return give_pci(pci, d->gpu.pci_bus_id);
}

static nvmlReturn_t get_memory(const struct device *d, unsigned long long *total, unsigned long long *free_,
                               unsigned long long *used)
{
    if (d->is_mig && d->mig.stale)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!d->is_mig && !d->gpu.has_memory)
        return NVML_ERROR_NOT_SUPPORTED;
    *total = d->is_mig ? d->mig.memory_bytes : d->gpu.memory_bytes;
    *used = d->is_mig ? 0 : d->gpu.used_bytes;
    *free_ = *total > *used ? *total - *used : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(device, memory);
    return get_memory(d, &memory->total, &memory->free, &memory->used);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_DEVICE(device, memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory->reserved = 0;
    return get_memory(d, &memory->total, &memory->free, &memory->used);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(device, major && minor);
    if (d->gpu.major < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *major = d->gpu.major;
    *minor = d->gpu.minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
    ENTER_DEVICE(device, mode);
    if (d->is_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *mode = (nvmlComputeMode_t)node->modes[d->slot];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    ENTER_DEVICE(device, 1);
    if (d->is_mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((unsigned int)mode >= NVML_COMPUTEMODE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    node->modes[d->slot] = (uint32_t)mode;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER_DEVICE(device, info);
    if (d->is_mig || d->gpu.fabric_state < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->state = (nvmlGpuFabricState_t)d->gpu.fabric_state;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(device, values && valuesCount > 0);
    for (int i = 0; i < valuesCount; i++) {
        int32_t value = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION ? d->gpu.recovery_action : -1;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].nvmlReturn = give_number(&values[i].value.uiVal, value);
    }
    return NVML_SUCCESS;
}

/* Links between GPUs. */

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *pathInfo)
{
    ENTER_DEVICE(device1, pathInfo);
    struct device other;
    node_lock(node);
    int found = resolve(device2, &other);
    uint8_t level = found ? node->ancestors[d->slot][other.slot] : 0;
    node_unlock(node);
    if (!found)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pathInfo = (nvmlGpuTopologyLevel_t)level;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
    ENTER_DEVICE(device, isActive);
    if (link >= d->gpu.link_count)
        return d->gpu.link_count ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *isActive = d->gpu.links[link] == LINK_DOWN ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

static int32_t peer(const struct device *d, unsigned int link)
{
    return link < d->gpu.link_count ? d->gpu.links[link] : LINK_DOWN;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *pNvLinkDeviceType)
{
    ENTER_DEVICE(device, pNvLinkDeviceType);
    if (peer(d, link) == LINK_DOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    *pNvLinkDeviceType = peer(d, link) == LINK_TO_SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(device, pci);
    int32_t slot = peer(d, link);
    if (slot == LINK_DOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    return give_pci(pci, slot == LINK_TO_SWITCH ? SWITCH_BUS_ID : node->gpus[slot].pci_bus_id);
}

/* Processes. Version 1 of an entry is the beginning of version 2; version 3 of a function has the same entries as 2. */

static nvmlReturn_t give_processes(const struct device *d, uint32_t kind, unsigned int *count, void *entries,
                                   size_t entry_size)
{
    unsigned int room = entries ? *count : 0, found = 0;
    for (uint32_t i = 0; i < d->gpu.process_count; i++) {
        const struct process *process = &d->gpu.processes[i];
        if (process->kind != kind || (d->is_mig && process->gpu_instance_id != d->mig.gpu_instance_id))
            continue;
        nvmlProcessInfo_v2_t entry = {
            .pid = process->pid,
            .usedGpuMemory = process->used_bytes,
            .gpuInstanceId = process->gpu_instance_id,
            .computeInstanceId = process->compute_instance_id,
        };
        if (found < room)
            memcpy((char *)entries + found * entry_size, &entry, entry_size);
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                  nvmlProcessInfo_v1_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 0, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 0, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 0, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                   nvmlProcessInfo_v1_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 1, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                      nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 1, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                      nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 1, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
                                                     nvmlProcessInfo_v1_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 2, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
                                                        nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 2, infoCount, infos, sizeof *infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
                                                        nvmlProcessInfo_v2_t *infos)
{
    ENTER_DEVICE(device, infoCount);
    return give_processes(d, 2, infoCount, infos, sizeof *infos);
}
