#include "library.h"

#include <string.h>

#define MAX_EVENT_SETS 64

static struct event_set {
    uint32_t used;
    uint64_t seen;
    uint64_t registered[MAX_GPUS]; /* 1 + how many events there were before; 0: not registered */
} event_sets[MAX_EVENT_SETS]; /* of this session */

void drop_event_sets(void)
{
    memset(event_sets, 0, sizeof event_sets);
}

static struct event_set *find_set(nvmlEventSet_t handle)
{
    uintptr_t number = (uintptr_t)handle;
    return number >= 1 && number <= MAX_EVENT_SETS && event_sets[number - 1].used ? &event_sets[number - 1] : NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(set);
    nvmlReturn_t result = NVML_ERROR_MEMORY;
    node_lock(node);
    for (uintptr_t i = 0; i < MAX_EVENT_SETS && result != NVML_SUCCESS; i++)
        if (!event_sets[i].used) {
            memset(&event_sets[i], 0, sizeof event_sets[i]);
            event_sets[i].used = 1;
            event_sets[i].seen = node->event_count;
            *set = (nvmlEventSet_t)(i + 1);
            result = NVML_SUCCESS;
        }
    node_unlock(node);
    return result;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(find_set(set));
    find_set(set)->used = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
    ENTER_DEVICE(device, eventTypes);
    *eventTypes = d->gpu.reports_events ? nvmlEventTypeXidCriticalError : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
    ENTER_DEVICE(device, find_set(set));
    if (d->is_mig)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!d->gpu.reports_events || (eventTypes & ~nvmlEventTypeXidCriticalError))
        return NVML_ERROR_NOT_SUPPORTED;
    node_lock(node);
    if (find_set(set)->registered[d->slot] == 0)
        find_set(set)->registered[d->slot] = 1 + node->event_count;
    node_unlock(node);
    return NVML_SUCCESS;
}

static int take_event(struct event_set *set, nvmlEventData_t *data)
{
    for (; set->seen < node->event_count; set->seen++) {
        const struct event *event = &node->events[set->seen % MAX_EVENTS];
        uint64_t since = event->slot >= 0 ? set->registered[event->slot] : 1;
        if (since == 0 || set->seen < since - 1)
            continue;
        data->device = event->slot >= 0 ? make_handle((uint32_t)event->slot, -1) : (nvmlDevice_t)8;
        data->eventType = nvmlEventTypeXidCriticalError;
        data->eventData = event->xid;
        data->gpuInstanceId = event->gpu_instance_id;
        data->computeInstanceId = event->compute_instance_id;
        set->seen++;
        return 1;
    }
    return 0;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
    ENTER(find_set(set) && data);
    int64_t end_ms = node_now_ms() + timeoutms;
    for (;;) {
        node_lock(node);
        uint32_t seen = __atomic_load_n(&node->changes, __ATOMIC_SEQ_CST);
        struct event_set *found = find_set(set);
        int taken = found != NULL && take_event(found, data);
        node_unlock(node);
        if (found == NULL)
            return NVML_ERROR_INVALID_ARGUMENT;
        if (taken)
            return NVML_SUCCESS;
        int64_t left_ms = end_ms - node_now_ms();
        if (left_ms <= 0)
            return NVML_ERROR_TIMEOUT;
        node_wait(&node->changes, seen, left_ms);
    }
}
