/* Memory limits of cgroups, as sharer/simulation/memory_limits.py has them in Python and says what they are like. */
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTROL "cgroup.subtree_control"

static uint64_t inode_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode) ? status.st_ino : 0;
}

static int exists_in(const char *path, const char *name)
{
    char file[LIMIT_PATH_SIZE + 64];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return access(file, F_OK) == 0;
}

/* The path of the cgroup above, in place. 0: there is none. */
static int cut(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path)
        return 0;
    *slash = 0;
    return 1;
}

static int has_dmem(const char *path)
{
    if (exists_in(path, "dmem.max"))
        return 1;
    char above[LIMIT_PATH_SIZE], file[LIMIT_PATH_SIZE + 64], word[64];
    strcpy(above, path);
    if (!cut(above))
        return 0;
    snprintf(file, sizeof file, "%s/" CONTROL, above);
    FILE *control = fopen(file, "r");
    int found = 0;
    while (control != NULL && !found && fscanf(control, "%63s", word) == 1)
        found = strcmp(word, "dmem") == 0;
    if (control != NULL)
        fclose(control);
    return found;
}

/* The entry of a cgroup that exists; those of removed cgroups are used again. Called locked. NULL: no room. */
static struct limit *entry(struct node *of, uint32_t slot, const char *path, uint64_t inode)
{
    struct limit *unused = NULL;
    for (uint32_t i = 0; i < of->limit_count; i++) {
        struct limit *limit = &of->limits[i];
        if (limit->inode == inode && limit->slot == slot && strcmp(limit->path, path) == 0)
            return limit;
    }
    for (uint32_t i = 0; i < of->limit_count; i++) {
        struct limit *limit = &of->limits[i];
        if (limit->inode != 0 && inode_of(limit->path) != limit->inode)
            limit->inode = 0; /* removed, or another folder of the same name */
        if (limit->inode == 0)
            unused = limit;
    }
    if (unused == NULL && of->limit_count < MAX_LIMITS)
        unused = &of->limits[of->limit_count++];
    if (unused != NULL) {
        memset(unused, 0, sizeof *unused);
        strcpy(unused->path, path);
        unused->slot = slot;
        unused->inode = inode;
        unused->hard = NVML_DEVICE_MEMORY_LIMIT_MAX;
    }
    return unused;
}

static int is_limited(const struct limit *limit)
{
    return limit->soft != 0 || limit->hard != NVML_DEVICE_MEMORY_LIMIT_MAX;
}

/* The nearest cgroup with a limit, for `misc`. Called locked. */
static int is_nearest_limited(uint32_t slot, const char *path, const char *wanted)
{
    char here[LIMIT_PATH_SIZE];
    strcpy(here, path);
    do {
        for (uint32_t i = 0; i < node->limit_count; i++)
            if (node->limits[i].inode != 0 && node->limits[i].slot == slot && is_limited(&node->limits[i])
                && strcmp(node->limits[i].path, here) == 0)
                return strcmp(here, wanted) == 0;
    } while (cut(here));
    return 0;
}

static uint64_t used_below(uint32_t slot, const char *path)
{
    uint64_t used = 0;
    size_t length = strlen(path);
    for (uint32_t i = 0; i < node->limit_count; i++) {
        const struct limit *limit = &node->limits[i];
        if (limit->inode == 0 || limit->slot != slot || strncmp(limit->path, path, length) != 0
            || (limit->path[length] != 0 && limit->path[length] != '/'))
            continue;
        if (node->limit_backend == LIMITS_BY_DMEM || is_nearest_limited(slot, limit->path, path))
            used += limit->used;
    }
    return used;
}

static nvmlReturn_t check(const struct device *d, const char *path)
{
    if (d->is_mig || d->gpu.mig_enabled == 1 || node->limit_backend == NO_LIMITS)
        return NVML_ERROR_NOT_SUPPORTED;
    if (path == NULL || strlen(path) >= LIMIT_PATH_SIZE || inode_of(path) == 0)
        return NVML_ERROR_OPERATING_SYSTEM;
    return NVML_SUCCESS;
}

int node_set_limit(struct node *of, uint32_t slot, const char *path, uint64_t soft, uint64_t hard, uint64_t total)
{
    if (soft > hard || (hard != NVML_DEVICE_MEMORY_LIMIT_MAX && hard > total))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (of->limit_backend == LIMITS_BY_DMEM && !has_dmem(path))
        return NVML_ERROR_NOT_FOUND;
    struct limit *limit = entry(of, slot, path, inode_of(path));
    if (limit == NULL)
        return NVML_ERROR_MEMORY;
    uint64_t before = limit->soft;
    char above[LIMIT_PATH_SIZE], higher[LIMIT_PATH_SIZE];
    strcpy(above, path);
    while (of->limit_backend == LIMITS_BY_DMEM && cut(above)) {
        strcpy(higher, above);
        if (!exists_in(above, CONTROL) || !cut(higher) || !exists_in(higher, CONTROL))
            break; /* the root of the tree has no limits */
        struct limit *reserved = entry(of, slot, above, inode_of(above));
        if (reserved != NULL)
            reserved->soft = reserved->soft + soft > before ? reserved->soft + soft - before : 0;
    }
    limit->soft = soft;
    limit->hard = hard;
    return NVML_SUCCESS;
}

void node_use(struct node *of, uint32_t slot, const char *path, uint64_t used)
{
    struct limit *limit = inode_of(path) != 0 ? entry(of, slot, path, inode_of(path)) : NULL;
    if (limit != NULL)
        limit->used = used;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    ENTER_DEVICE(device, limits);
    node_lock(node);
    nvmlReturn_t result = check(d, limits->nameSpace);
    uint64_t total = d->gpu.has_memory ? d->gpu.memory_bytes : NVML_DEVICE_MEMORY_LIMIT_MAX;
    if (result == NVML_SUCCESS)
        result = (nvmlReturn_t)node_set_limit(node, d->slot, limits->nameSpace, limits->softLimit, limits->hardLimit,
                                              total);
    node_unlock(node);
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    ENTER_DEVICE(device, limits);
    node_lock(node);
    nvmlReturn_t result = check(d, limits->nameSpace);
    if (result == NVML_SUCCESS && node->limit_backend == LIMITS_BY_DMEM && !has_dmem(limits->nameSpace))
        result = NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) {
        const struct limit *limit = entry(node, d->slot, limits->nameSpace, inode_of(limits->nameSpace));
        if (limit == NULL || (node->limit_backend == LIMITS_BY_MISC && !is_limited(limit)))
            result = NVML_ERROR_NOT_SUPPORTED;
        else {
            limits->softLimit = limit->soft;
            limits->hardLimit = limit->hard;
            limits->currentUsed = used_below(d->slot, limits->nameSpace);
        }
    }
    node_unlock(node);
    return result;
}
