/* The tables are those of the workspace's store: the sorted one of `lookup.py`, and the objects that were added since, in
 * any order, which are hashed here. */
#define _GNU_SOURCE
#include "objects.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

enum { FAN = 1 << 16, GAP = 64, AHEAD = 256 << 10 };

struct __attribute__((packed)) head {
    uint64_t sorted, added; /* bytes of the sorted table, number of objects added since */
};

struct __attribute__((packed)) table {
    char magic[4];
    uint64_t index_end, pack_end, objects, events;
    uint32_t crc, fan[FAN + 1];
};

struct __attribute__((packed)) item {
    uint8_t digest[32];
    struct place place;
};

static const struct table *sorted;
static const struct item *added;
static uint32_t *slots; /* numbers of added objects plus one; 0: unused */
static uint64_t mask;
static int pack;

static uint64_t slot_of(const uint8_t digest[32]) {
    uint64_t bits;
    memcpy(&bits, digest, sizeof bits);
    return bits & mask;
}

int open_objects(int tables, int pack_fd) {
    struct stat st;
    pack = pack_fd;
    if (fstat(tables, &st)) return errno;
    const char *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, tables, 0);
    if (data == MAP_FAILED) return errno;
    const struct head *h = (const struct head *)data;
    sorted = h->sorted ? (const struct table *)(data + sizeof *h) : NULL;
    added = (const struct item *)(data + sizeof *h + h->sorted);
    while (mask < 2 * h->added) mask = 2 * mask + 1;
    if (!(slots = calloc(mask + 1, sizeof *slots))) return ENOMEM;
    for (uint32_t n = 0; n < h->added; n++) {
        uint64_t slot = slot_of(added[n].digest);
        while (slots[slot]) slot = (slot + 1) & mask;
        slots[slot] = n + 1;
    }
    return 0;
}

int find(const uint8_t digest[32], struct place *place) {
    const struct item *found = NULL;
    if (sorted) {
        const struct item *items = (const struct item *)(sorted + 1);
        uint32_t first = (uint32_t)digest[0] << 8 | digest[1];
        for (uint32_t n = sorted->fan[first]; n < sorted->fan[first + 1] && !found; n++)
            if (!memcmp(items[n].digest, digest, 32)) found = items + n;
    }
    for (uint64_t slot = slot_of(digest); slots[slot] && !found; slot = (slot + 1) & mask)
        if (!memcmp(added[slots[slot] - 1].digest, digest, 32)) found = added + slots[slot] - 1;
    if (!found) return MISSING;
    *place = found->place;
    return 0;
}

int content(const struct place *p, uint32_t count, const uint8_t digest[32], const char **data) {
    static char *buffer;
    static uint64_t room, start, end; /* what is in the buffer */
    uint64_t last = p->offset + p->length;
    if (p->offset < start || last > end) {
        for (uint32_t n = 1; n < count; n++) {
            uint64_t after = p[n].offset + p[n].length;
            if (p[n].offset < last || p[n].offset > last + GAP || after > p->offset + AHEAD) break;
            last = after;
        }
        if (last - p->offset > room) {
            free(buffer);
            room = last - p->offset + AHEAD;
            if (!(buffer = malloc(room))) return ENOMEM;
        }
        for (start = end = p->offset; end < last;) {
            ssize_t got = pread(pack, buffer + (end - start), last - end, (off_t)end);
            if (got < 0) return errno;
            if (got == 0) break;
            end += (uint64_t)got;
        }
        if (p->offset + p->length > end) return DAMAGED;
    }
    uint8_t found[32];
    *data = buffer + (p->offset - start);
    sha256(*data, p->length, found);
    return memcmp(found, digest, sizeof found) ? DAMAGED : 0;
}
