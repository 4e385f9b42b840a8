/* A simulated NVML: four H100s without a driver, for NVIDIA's own device plugin and DRA driver in tests.
 *
 * Written from the documented interface of the library. What those programs ask is answered; everything else that
 * they are linked against is answered with "not supported" by stubs that `nvidia_driver` generates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define COUNT 4
#define OK 0
#define INVALID 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10
#define VERSION "570.86.15"

typedef int status;
typedef struct { int index; } *device;
typedef unsigned long long ull;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { ull total, free, used; } memory;
typedef struct { unsigned version; ull total, reserved, free, used; } memory_v2;
typedef struct { device device; ull type, data; unsigned gpu_instance, compute_instance; } event;

static struct { int index; } cards[COUNT] = {{0}, {1}, {2}, {3}};

static status text(char *to, unsigned length, const char *from) {
    if (strlen(from) >= length) return INVALID;
    strcpy(to, from);
    return OK;
}

status nvmlInit_v2(void) { return OK; }
status nvmlInitWithFlags(unsigned flags) { return OK; }
status nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(status code) { return code == OK ? "Success" : code == NOT_SUPPORTED ? "Not Supported" : "Error"; }
status nvmlSystemGetDriverVersion(char *to, unsigned length) { return text(to, length, VERSION); }
status nvmlSystemGetNVMLVersion(char *to, unsigned length) { return text(to, length, "12.570.86.15"); }
status nvmlSystemGetCudaDriverVersion(int *version) { *version = 12080; return OK; }
status nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return OK; }
status nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return OK; }

status nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (index >= COUNT) return INVALID;
    *found = (device)&cards[index];
    return OK;
}

status nvmlDeviceGetUUID(device card, char *to, unsigned length) {
    char name[64];
    snprintf(name, sizeof name, "GPU-00000000-0000-4000-8000-%012d", card->index);
    return text(to, length, name);
}

status nvmlDeviceGetHandleByUUID(const char *uuid, device *found) {
    for (int i = 0; i < COUNT; i++) {
        char name[96];
        nvmlDeviceGetUUID((device)&cards[i], name, sizeof name);
        if (strcmp(name, uuid) == 0) { *found = (device)&cards[i]; return OK; }
    }
    return NOT_FOUND;
}

status nvmlDeviceGetPciInfo_v3(device card, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = card->index + 1;
    info->id = 0x233010de;
    snprintf(info->legacy, sizeof info->legacy, "0000:%02X:00.0", info->bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return OK;
}

status nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device *found) {
    for (int i = 0; i < COUNT; i++) {
        pci_info info;
        nvmlDeviceGetPciInfo_v3((device)&cards[i], &info);
        if (strcasecmp(info.bus_id, bus_id) == 0 || strcasecmp(info.legacy, bus_id) == 0) { *found = (device)&cards[i]; return OK; }
    }
    return NOT_FOUND;
}

status nvmlDeviceGetName(device card, char *to, unsigned length) { return text(to, length, "NVIDIA H100 80GB HBM3"); }
status nvmlDeviceGetIndex(device card, unsigned *index) { *index = card->index; return OK; }
status nvmlDeviceGetMinorNumber(device card, unsigned *minor) { *minor = card->index; return OK; }
status nvmlDeviceGetBrand(device card, int *brand) { *brand = 2; return OK; }
status nvmlDeviceGetArchitecture(device card, unsigned *kind) { *kind = 9; return OK; }
status nvmlDeviceGetCudaComputeCapability(device card, int *major, int *minor) { *major = 9; *minor = 0; return OK; }
status nvmlDeviceIsMigDeviceHandle(device card, unsigned *is) { *is = 0; return OK; }
status nvmlDeviceGetMaxMigDeviceCount(device card, unsigned *count) { *count = 0; return OK; }
status nvmlDeviceGetMigMode(device card, unsigned *now, unsigned *later) { *now = *later = 0; return OK; }
status nvmlDeviceGetMemoryInfo(device card, memory *info) {
    info->total = info->free = 80ull << 30;
    info->used = 0;
    return OK;
}
status nvmlDeviceGetMemoryInfo_v2(device card, memory_v2 *info) {
    info->total = info->free = 80ull << 30;
    info->reserved = info->used = 0;
    return OK;
}

/* Each card has a socket of its own: the farthest that two can be apart. */
status nvmlDeviceGetTopologyCommonAncestor(device one, device other, int *level) { *level = 50; return OK; }

/* Nothing ever happens to these cards. */
status nvmlEventSetCreate(void **set) { *set = cards; return OK; }
status nvmlEventSetFree(void *set) { return OK; }
status nvmlDeviceGetSupportedEventTypes(device card, ull *types) { *types = 8 | 1 | 2; return OK; }
status nvmlDeviceRegisterEvents(device card, ull types, void *set) { return OK; }
status nvmlEventSetWait_v2(void *set, event *found, unsigned milliseconds) { usleep(milliseconds * 1000); return TIMEOUT; }
