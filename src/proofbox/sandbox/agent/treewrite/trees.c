#define _GNU_SOURCE
#include "trees.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "objects.h"
#include "sha256.h"

enum { PAGE = 1 };

int next_row(struct rows *rows, struct row *row) {
    if (rows->at == rows->size) return rows->at = 0;
    const char *at = rows->data + rows->at;
    for (row->mode = 0; *at != ' '; at++) row->mode = row->mode << 3 | (uint32_t)(*at - '0');
    if (S_ISREG(row->mode)) row->mode &= ~(uint32_t)(S_ISUID | S_ISGID);
    row->name = at + 1;
    row->length = (uint32_t)strlen(row->name);
    row->digest = (const uint8_t *)row->name + row->length + 1;
    rows->at = (size_t)((const char *)row->digest + 32 - rows->data);
    return 1;
}

/* Names become files: one that would escape its directory is refused, as is everything that the store does not write. */
static int is_sound(const char *at, const char *end, int pages) {
    const char *before = "";
    while (at < end) {
        uint32_t mode = 0;
        size_t digits = 0;
        for (; at < end && *at >= (digits ? '0' : '1') && *at <= '7'; at++, digits++) mode = mode << 3 | (uint32_t)(*at - '0');
        if (digits < 1 || digits > 7 || at == end || *at++ != ' ') return 0;
        if (pages ? mode != PAGE : !S_ISDIR(mode) && !S_ISREG(mode) && !S_ISLNK(mode)) return 0;
        const char *name = at, *nul = memchr(at, 0, (size_t)(end - at));
        if (!nul || end - nul < 33 || memchr(name, '/', (size_t)(nul - name)) || strcmp(name, before) <= 0) return 0;
        if (!strcmp(name, ".") || !strcmp(name, "..")) return 0;
        before = name;
        at = nul + 33;
    }
    return 1;
}

/* Append an object to the rows. */
static int append(const uint8_t digest[32], struct rows *rows, int *pages) {
    struct place place;
    const char *data;
    uint8_t empty[32];
    sha256("", 0, empty);
    if (!memcmp(digest, empty, sizeof empty)) return 0; /* it is not stored */
    int code = find(digest, &place);
    if (!code && !place.offset) code = MISSING;
    if (!code) code = content(&place, 1, digest, &data);
    if (!code) {
        int has_pages = pages && place.length > 1 && data[0] == '1' && data[1] == ' ';
        char *more = realloc(rows->data, rows->size + place.length + 1);
        if (!more) return ENOMEM;
        rows->data = more;
        if (!is_sound(data, data + place.length, has_pages)) code = MALFORMED;
        memcpy(more + rows->size, data, place.length);
        rows->size += place.length;
        if (pages) *pages = has_pages;
    }
    if (code) memcpy(rows->wrong, digest, sizeof rows->wrong);
    return code;
}

int read_rows(const uint8_t tree[32], struct rows *rows) {
    int pages = 0, code;
    *rows = (struct rows){0};
    code = append(tree, rows, &pages);
    if (!pages) return code;
    struct rows list = *rows;
    struct row page;
    *rows = (struct rows){0};
    while (!code && next_row(&list, &page)) code = append(page.digest, rows, NULL);
    free(list.data);
    return code;
}
