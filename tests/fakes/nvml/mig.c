#include "library.h"

#include <stdio.h>
#include <string.h>

#define FIRST_PROFILE_ID 100 /* a profile's ID is not its number */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    ENTER_DEVICE(device, currentMode && pendingMode);
    if (d->is_mig || d->gpu.mig_enabled < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *currentMode = *pendingMode = (unsigned int)d->gpu.mig_enabled;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    ENTER_DEVICE(device, count);
    *count = d->gpu.mig_enabled == 1 ? d->gpu.max_migs : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    ENTER_DEVICE(device, migDevice);
    if (d->gpu.mig_enabled != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= d->gpu.max_migs)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (find_mig(&d->gpu, d->slot, index) == NULL)
        return NVML_ERROR_NOT_FOUND;
    *migDevice = make_handle(d->slot, (int32_t)index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(device, id);
    return give_number(id, d->is_mig ? (int32_t)d->mig.gpu_instance_id : -1);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_DEVICE(device, id);
    return give_number(id, d->is_mig ? (int32_t)d->mig.compute_instance_id : -1);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER_DEVICE(device, attributes);
    if (!d->is_mig || d->mig.stale)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(attributes, 0, sizeof *attributes);
    attributes->gpuInstanceSliceCount = d->mig.gpu_slices;
    attributes->computeInstanceSliceCount = d->mig.compute_slices;
    attributes->memorySizeMB = d->mig.memory_bytes >> 20;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    ENTER_DEVICE(device, gpuInstance);
    for (uint32_t i = 0; i < d->gpu.mig_count; i++)
        if (d->gpu.migs[i].gpu_instance_id == id && !d->gpu.migs[i].stale) {
            *gpuInstance = make_handle(d->slot, (int32_t)d->gpu.migs[i].index);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

/* The distinct profiles of a GPU's instances, in alphabetical order; NULL after the last. */
static const char *profile_at(const struct gpu *gpu, uint32_t wanted)
{
    const char *last = "";
    for (uint32_t n = 0; n <= wanted; n++) {
        const char *next = NULL;
        for (uint32_t i = 0; i < gpu->mig_count; i++)
            if (strcmp(gpu->migs[i].profile, last) > 0 && (next == NULL || strcmp(gpu->migs[i].profile, next) < 0))
                next = gpu->migs[i].profile;
        if (next == NULL)
            return NULL;
        last = next;
    }
    return last;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    ENTER_DEVICE(gpuInstance, info);
    if (!d->is_mig)
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->id = d->mig.gpu_instance_id;
    for (uint32_t n = 0; profile_at(&d->gpu, n) != NULL; n++)
        if (strcmp(profile_at(&d->gpu, n), d->mig.profile) == 0)
            info->profileId = FIRST_PROFILE_ID + n;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    ENTER_DEVICE(device, info);
    if (info->version != nvmlGpuInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const char *name = profile_at(&d->gpu, profile);
    if (name == NULL)
        return NVML_ERROR_NOT_SUPPORTED;
    info->id = FIRST_PROFILE_ID + profile;
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return NVML_SUCCESS;
}
