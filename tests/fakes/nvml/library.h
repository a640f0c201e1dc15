/* An NVML library for tests, made against NVIDIA's own header: a real libnvidia-ml.so.1 that has no GPUs behind it but the
 * node in the file "node" beside it. It answers and fails as node.h says, and refuses what the real one refuses: not
 * initialised (1), a handle that is not of this session or a null pointer (2), a buffer that is too small (7).
 *
 * session.c  handles, and the way into each function     devices.c  what a GPU is, its links and processes
 * mig.c      MIG devices                                 events.c   XID events
 * limits.c   memory limits of cgroups
 */
#ifndef LIBRARY_H
#define LIBRARY_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "node.h"

#include <nvml.h>

/* What a handle stands for, copied so that it cannot change while a function works on it. */
struct device {
    struct gpu gpu;
    struct mig mig;
    uint32_t slot;
    int is_mig;
};

extern struct node *node; /* NULL where there is none */

/* This process's session. With the node's lock held. */
extern uint32_t users;     /* nvmlInit is counted */
extern uint32_t gpu_count; /* as this session found them */
extern uint32_t order[MAX_GPUS];
void *make_handle(uint32_t slot, int32_t mig_index); /* -1: of the GPU */
int resolve(const void *handle, struct device *device);
const struct mig *find_mig(const struct gpu *gpu, uint32_t slot, uint32_t index);
void drop_event_sets(void);

/* The way into each function: count the call, let the faults work on it, then refuse what the real library refuses. */
nvmlReturn_t enter(const char *function, int pointers_given);
nvmlReturn_t enter_device(const char *function, const void *handle, int pointers_given, struct device *device);

#define ENTER(pointers_given)                                           \
    do {                                                                \
        nvmlReturn_t refusal_ = enter(__func__, (pointers_given) != 0); \
        if (refusal_ != NVML_SUCCESS)                                   \
            return refusal_;                                            \
    } while (0)

#define ENTER_DEVICE(handle, pointers_given)                                                     \
    struct device device_;                                                                       \
    do {                                                                                         \
        nvmlReturn_t refusal_ = enter_device(__func__, handle, (pointers_given) != 0, &device_); \
        if (refusal_ != NVML_SUCCESS)                                                            \
            return refusal_;                                                                     \
    } while (0);                                                                                 \
    const struct device *d = &device_

nvmlReturn_t give_text(char *buffer, unsigned int length, const char *text);
nvmlReturn_t give_number(unsigned int *out, int32_t number); /* -1: not supported */

#endif
