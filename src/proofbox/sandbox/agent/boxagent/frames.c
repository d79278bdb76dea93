/* Buffers and frames, and the functions that every part uses. */
#include "boxagent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

_Noreturn void die(const char *what) {
    dprintf(2, "boxagent: %s: %s\n", what, strerror(errno));
    _exit(125);
}

void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int later[64];
static size_t later_count;

void shut_later(int *fd) { /* while a command runs, or after a moment without one, so that no peer waits for it */
    if (*fd >= 0 && later_count < sizeof later / sizeof *later) later[later_count++] = *fd, *fd = -1;
    shut(fd);
}

void close_later(void) {
    while (later_count) close(later[--later_count]);
}

bool closing(void) { return later_count > 0; }

/* Memory that no child gets a copy of: a spare has no data of earlier requests, and a fork need not protect these pages.
 * What every box needs is here and not on the heap, so that a fork has no heap to copy. */
void *unshared(size_t size) {
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED || madvise(data, size, MADV_DONTFORK)) die("out of memory");
    return data;
}

void unmap(void *data, size_t size) {
    if (data) munmap(data, size);
}

uint8_t *room(struct buffer *b, size_t want) {
    if (b->start && b->start == b->end) b->start = b->end = 0;
    if (b->size - b->end < want) {
        if (b->start) {
            memmove(b->data, b->data + b->start, b->end - b->start);
            b->end -= b->start;
            b->start = 0;
        }
        if (b->size - b->end < want) {
            size_t size = b->size ? b->size : 4096;
            while (size - b->end < want) size *= 2;
            uint8_t *data = unshared(size);
            if (b->end) memcpy(data, b->data, b->end);
            unmap(b->data, b->size);
            b->data = data;
            b->size = size;
        }
    }
    return b->data + b->end;
}

size_t held(const struct buffer *b) { return b->end - b->start; }

void drop(struct buffer *b) {
    unmap(b->data, b->size);
    *b = (struct buffer){0};
}

void put(struct buffer *b, uint64_t value, int bytes) {
    uint8_t *p = room(b, (size_t)bytes);
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(value >> (8 * i));
    b->end += (size_t)bytes;
}

void frame(struct peer *p, int type, uint32_t id, size_t payload) {
    put(&p->out, payload + 5, 4);
    put(&p->out, (uint64_t)type, 1);
    put(&p->out, id, 4);
}

void put_bytes(struct buffer *b, const void *data, size_t n) {
    if (!n) return;
    memcpy(room(b, n), data, n);
    b->end += n;
}

uint64_t take(struct cursor *c, int bytes) {
    uint64_t value = 0;
    if (c->left < (size_t)bytes) return c->bad = true, 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)c->p[i] << (8 * i);
    c->p += bytes;
    c->left -= (size_t)bytes;
    return value;
}

void flush(struct peer *p) {
    while (held(&p->out) && !p->ended) {
        ssize_t n = write(p->wfd, p->out.data + p->out.start, held(&p->out));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) { p->ended = true; return; }
        p->out.start += (size_t)n;
    }
    if (p->out.size > 4 * OUT_HIGH) drop(&p->out);
}

void fatal(struct peer *p, const char *text) {
    frame(p, A_FATAL, 0, strlen(text));
    put_bytes(&p->out, text, strlen(text));
    flush(p);
    p->ended = true;
}

void failed(struct peer *p, uint32_t id, int stage, int error) {
    frame(p, A_FAILED, id, 5);
    put(&p->out, (uint64_t)stage, 1);
    put(&p->out, (uint32_t)error, 4);
}
