#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct node *node_attach(const char *path, int create)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0)
        return NULL;
    struct node *node = NULL;
    if (!create || ftruncate(fd, sizeof *node) == 0)
        node = mmap(NULL, sizeof *node, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (node == NULL || node == MAP_FAILED)
        return NULL;
    if (create) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&node->lock, &attributes);
        pthread_mutexattr_destroy(&attributes);
    }
    return node;
}

void node_detach(struct node *node)
{
    munmap(node, sizeof *node);
}

void node_lock(struct node *node)
{
    if (pthread_mutex_lock(&node->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&node->lock);
}

void node_unlock(struct node *node)
{
    pthread_mutex_unlock(&node->lock);
}

void node_ring(uint32_t *bell)
{
    __atomic_add_fetch(bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void node_wait(uint32_t *bell, uint32_t seen, int64_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000};
    syscall(SYS_futex, bell, FUTEX_WAIT, seen, timeout_ms < 0 ? NULL : &timeout, NULL, 0);
}

static void count(struct node *node, const char *function, const char *uuid)
{
    uint32_t i = 0;
    while (i < node->counter_count
           && (strcmp(node->counters[i].function, function) != 0 || strcmp(node->counters[i].uuid, uuid) != 0))
        i++;
    if (i == MAX_COUNTERS)
        return;
    if (i == node->counter_count) {
        strncpy(node->counters[i].function, function, FUNCTION_SIZE - 1);
        strncpy(node->counters[i].uuid, uuid, UUID_SIZE - 1);
        node->counter_count++;
    }
    node->counters[i].calls++;
}

static int is_about(const struct fault *fault, const char *function, const char *uuid, const char *parent_uuid)
{
    if (strcmp(fault->function, "*") != 0 && strcmp(fault->function, function) != 0)
        return 0;
    return fault->uuid[0] == 0 || (uuid && strcmp(fault->uuid, uuid) == 0)
           || (parent_uuid && strcmp(fault->uuid, parent_uuid) == 0);
}

static struct fault *find_fault(struct node *node, int32_t number)
{
    for (uint32_t i = 0; i < node->fault_count; i++)
        if (node->faults[i].number == number)
            return &node->faults[i];
    return NULL;
}

int64_t node_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for the delay to pass, or for ever, and in any case until the fault is cleared. Called and returns locked. */
static void hold_up(struct node *node, struct fault fault)
{
    int64_t end_ms = node_now_ms() + fault.delay_ms;
    while (find_fault(node, fault.number) != NULL) {
        int64_t left_ms = fault.hang ? -1 : end_ms - node_now_ms();
        if (!fault.hang && left_ms <= 0)
            return;
        uint32_t seen = __atomic_load_n(&node->changes, __ATOMIC_SEQ_CST);
        node_unlock(node);
        node_wait(&node->changes, seen, left_ms);
        node_lock(node);
    }
}

int node_enter(struct node *node, const char *function, const char *uuid, const char *parent_uuid)
{
    int code = 0;
    node_lock(node);
    count(node, function, "");
    if (uuid)
        count(node, function, uuid);
    if (parent_uuid)
        count(node, function, parent_uuid);
    node_ring(&node->calls);
    for (uint32_t i = 0; i < node->fault_count; i++) {
        struct fault *fault = &node->faults[i];
        if (!is_about(fault, function, uuid, parent_uuid)
            || (fault->times >= 0 && fault->hits >= fault->after + fault->times))
            continue;
        if (++fault->hits <= fault->after)
            continue;
        code = fault->code;
        if (fault->hang || fault->delay_ms)
            hold_up(node, *fault);
        break;
    }
    node_unlock(node);
    return code;
}
