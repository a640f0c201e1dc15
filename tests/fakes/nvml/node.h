/* The simulated node that all processes share: a file, mapped by each. layout.py describes the same structs to Python. */
#ifndef NODE_H
#define NODE_H

#include <pthread.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_MIGS 16
#define MAX_LINKS 36
#define MAX_PROCESSES 64
#define MAX_FAULTS 64
#define MAX_EVENTS 256
#define MAX_COUNTERS 4096
#define MAX_LIMITS 4096
#define LIMIT_PATH_SIZE 512
#define UUID_SIZE 96
#define NAME_SIZE 96
#define FUNCTION_SIZE 64

#define LINK_DOWN -1
#define LINK_TO_SWITCH -2

enum { NO_LIMITS, LIMITS_BY_DMEM, LIMITS_BY_MISC };

struct mig {
    char uuid[UUID_SIZE];
    char name[NAME_SIZE]; /* what nvmlDeviceGetName answers */
    char profile[NAME_SIZE];
    uint64_t memory_bytes;
    uint32_t index, gpu_instance_id, compute_instance_id, gpu_slices, compute_slices, stale;
};

struct process {
    uint64_t used_bytes;
    uint32_t pid, gpu_instance_id, compute_instance_id, kind;
};

/* An optional number is -1 where there is none. */
struct gpu {
    char uuid[UUID_SIZE];
    char name[NAME_SIZE];
    char pci_bus_id[32]; /* "" where there is none */
    uint64_t memory_bytes, used_bytes;
    int32_t present, has_memory, minor_number, major, minor, mig_enabled, reports_events, recovery_action,
        fabric_state;
    uint32_t max_migs, mig_count, link_count, process_count;
    int32_t links[MAX_LINKS]; /* a slot, LINK_DOWN or LINK_TO_SWITCH */
    struct mig migs[MAX_MIGS];
    struct process processes[MAX_PROCESSES];
};

struct fault {
    char function[FUNCTION_SIZE]; /* or "*" */
    char uuid[UUID_SIZE];         /* or "" */
    int32_t number, code, after, times, delay_ms, hang, hits, padding;
};

struct event {
    uint64_t xid;
    int32_t slot; /* -1: of no GPU that NVML knows */
    uint32_t gpu_instance_id, compute_instance_id, padding;
};

struct counter {
    char function[FUNCTION_SIZE];
    char uuid[UUID_SIZE]; /* "": all calls */
    uint64_t calls;
};

struct limit {
    char path[LIMIT_PATH_SIZE]; /* of the cgroup */
    uint64_t inode;             /* of its folder; 0: unused */
    uint64_t soft, hard, used;
    uint32_t slot, padding;
};

struct node {
    uint32_t changes; /* futex: faults, GPUs or events changed */
    uint32_t calls;   /* futex: something was called */
    char driver_version[NAME_SIZE]; /* "" where there is none */
    uint32_t gpu_count, fault_count, counter_count, limit_backend, limit_count, padding;
    uint64_t event_count;
    uint32_t order[MAX_GPUS]; /* slots, as a new session finds them */
    uint32_t modes[MAX_GPUS]; /* nvmlComputeMode_t, by slot */
    uint8_t ancestors[MAX_GPUS][MAX_GPUS];
    struct fault faults[MAX_FAULTS];
    struct event events[MAX_EVENTS]; /* a ring */
    struct counter counters[MAX_COUNTERS];
    struct limit limits[MAX_LIMITS];
    struct gpu gpus[MAX_GPUS];
    pthread_mutex_t lock; /* robust: a process that is killed while it holds it harms nobody; last, as only C knows it */
};

/* Also called by Python. */
struct node *node_attach(const char *path, int create);
void node_detach(struct node *node);
void node_lock(struct node *node);
void node_unlock(struct node *node);
void node_ring(uint32_t *bell);                                    /* wake all who wait at the bell */
void node_wait(uint32_t *bell, uint32_t seen, int64_t timeout_ms); /* until it rings, or has since `seen`; -1: for ever */
int64_t node_now_ms(void);

/* With the lock held. */
int node_set_limit(struct node *of, uint32_t slot, const char *path, uint64_t soft, uint64_t hard, uint64_t total);
void node_use(struct node *of, uint32_t slot, const char *path, uint64_t used);

/* Count a call of a function about these UUIDs (or NULL) and let the faults work on it: 0, or what it has to return. */
int node_enter(struct node *node, const char *function, const char *uuid, const char *parent_uuid);

#endif
