/* The entries of stored directories (`tree.py`). */
#include <stddef.h>
#include <stdint.h>

struct rows {
    char *data; /* allocated; pages are joined */
    size_t size, at;
    uint8_t wrong[32]; /* the object that made the reading fail */
};

struct row {
    uint32_t mode; /* as files get it: without the set-user-id and set-group-id bits */
    uint32_t length;
    const char *name;
    const uint8_t *digest;
};

/* Read and check all entries of a directory. Return an error number, DAMAGED, MISSING, MALFORMED or 0. */
int read_rows(const uint8_t tree[32], struct rows *rows);

/* Return whether there is another entry. After the last one, the first follows. */
int next_row(struct rows *rows, struct row *row);
