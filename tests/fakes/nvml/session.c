#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define MAX_HIDDEN 256

struct node *node;
uint32_t users, gpu_count, order[MAX_GPUS];
static uint32_t sessions; /* part of each handle, so that old ones are refused */
static struct { uint32_t slot; char uuid[UUID_SIZE]; } hidden[MAX_HIDDEN]; /* MIG devices that were stale before it */
static uint32_t hidden_count;

__attribute__((constructor)) static void attach(void)
{
    Dl_info self;
    char path[4096];
    if (dladdr((void *)attach, &self) == 0 || strlen(self.dli_fname) + 8 > sizeof path)
        return;
    strcpy(path, self.dli_fname);
    char *slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, "node");
    node = node_attach(path, 0);
}

/* Handles: session, slot, MIG index + 1. */

void *make_handle(uint32_t slot, int32_t mig_index)
{
    return (void *)(((uintptr_t)sessions << 24) | ((uintptr_t)(slot + 1) << 8) | (uintptr_t)(mig_index + 1));
}

const struct mig *find_mig(const struct gpu *gpu, uint32_t slot, uint32_t index)
{
    for (uint32_t i = 0; i < gpu->mig_count; i++) {
        const struct mig *mig = &gpu->migs[i];
        int is_hidden = 0;
        for (uint32_t h = 0; mig->stale && h < hidden_count; h++)
            is_hidden |= hidden[h].slot == slot && strcmp(hidden[h].uuid, mig->uuid) == 0;
        if (mig->index == index && !is_hidden)
            return mig;
    }
    return NULL;
}

int resolve(const void *handle, struct device *device)
{
    uintptr_t value = (uintptr_t)handle;
    uint32_t slot = (uint32_t)(value >> 8 & 0xFFFF) - 1;
    if (handle == NULL || value >> 24 != sessions || slot >= MAX_GPUS)
        return 0;
    device->slot = slot;
    device->gpu = node->gpus[slot];
    device->is_mig = (value & 0xFF) != 0;
    if (device->is_mig) {
        const struct mig *mig = find_mig(&device->gpu, slot, (uint32_t)(value & 0xFF) - 1);
        if (mig == NULL)
            return 0;
        device->mig = *mig;
    }
    return 1;
}

nvmlReturn_t enter(const char *function, int pointers_given)
{
    if (node == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    int code = node_enter(node, function, NULL, NULL);
    if (code != NVML_SUCCESS)
        return (nvmlReturn_t)code;
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    return pointers_given ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t enter_device(const char *function, const void *handle, int pointers_given, struct device *device)
{
    if (node == NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    node_lock(node);
    int found = users > 0 && resolve(handle, device);
    node_unlock(node);
    const char *parent = found && device->is_mig ? device->gpu.uuid : NULL;
    const char *uuid = !found ? NULL : device->is_mig ? device->mig.uuid : device->gpu.uuid;
    int code = node_enter(node, function, uuid, parent);
    if (code != NVML_SUCCESS)
        return (nvmlReturn_t)code;
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!found || !pointers_given)
        return NVML_ERROR_INVALID_ARGUMENT;
    return device->gpu.present ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t give_text(char *buffer, unsigned int length, const char *text)
{
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

nvmlReturn_t give_number(unsigned int *out, int32_t number)
{
    if (number < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned int)number;
    return NVML_SUCCESS;
}

/* The library and the driver. */

static nvmlReturn_t init(unsigned int flags)
{
    nvmlReturn_t result = NVML_SUCCESS;
    node_lock(node);
    if (node->gpu_count == 0 && !(flags & NVML_INIT_FLAG_NO_GPUS)) {
        result = NVML_ERROR_GPU_NOT_FOUND;
    } else if (users++ == 0) {
        sessions = (sessions + 1) & 0xFFFF;
        gpu_count = node->gpu_count;
        memcpy(order, node->order, sizeof order);
        hidden_count = 0;
        for (uint32_t slot = 0; slot < MAX_GPUS; slot++)
            for (uint32_t i = 0; i < node->gpus[slot].mig_count; i++)
                if (node->gpus[slot].migs[i].stale && hidden_count < MAX_HIDDEN) {
                    hidden[hidden_count].slot = slot;
                    strcpy(hidden[hidden_count++].uuid, node->gpus[slot].migs[i].uuid);
                }
    }
    node_unlock(node);
    return result;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t result = enter(__func__, 1);
    return result == NVML_ERROR_UNINITIALIZED || result == NVML_SUCCESS ? init(flags) : result;
}

nvmlReturn_t nvmlInit_v2(void)
{
    nvmlReturn_t result = enter(__func__, 1);
    return result == NVML_ERROR_UNINITIALIZED || result == NVML_SUCCESS ? init(0) : result;
}

nvmlReturn_t nvmlShutdown(void)
{
    ENTER(1);
    node_lock(node);
    if (--users == 0)
        drop_event_sets();
    node_unlock(node);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    return result == NVML_SUCCESS ? "Success" : "an error of the simulated NVML";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER(version);
    return node->driver_version[0] ? give_text(version, length, node->driver_version) : NVML_ERROR_NOT_SUPPORTED;
}

/* For the tests of layouts. */

uint64_t fake_sizeof(const char *name)
{
#define SIZE(type) if (strcmp(name, #type) == 0) return sizeof(type)
    SIZE(nvmlMemory_t);
    SIZE(nvmlMemory_v2_t);
    SIZE(nvmlPciInfo_t);
    SIZE(nvmlDeviceAttributes_t);
    SIZE(nvmlEventData_t);
    SIZE(nvmlFieldValue_t);
    SIZE(nvmlGpuInstanceInfo_t);
    SIZE(nvmlGpuInstanceProfileInfo_v2_t);
    SIZE(nvmlProcessInfo_v1_t);
    SIZE(nvmlProcessInfo_v2_t);
    SIZE(struct mig);
    SIZE(struct process);
    SIZE(struct gpu);
    SIZE(struct fault);
    SIZE(struct event);
    SIZE(struct counter);
    SIZE(struct limit);
    SIZE(nvmlSetMemoryLimits_v1_t);
    SIZE(nvmlGetMemoryLimits_v1_t);
#undef SIZE
    return strcmp(name, "struct node up to its lock") == 0 ? offsetof(struct node, lock) : 0;
}
