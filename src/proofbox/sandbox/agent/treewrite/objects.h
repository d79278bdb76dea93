/* Stored objects by their digests. */
#include <stdint.h>

enum { DAMAGED = 250, MISSING = 251, MALFORMED = 252 }; /* beside error numbers */

struct place {
    uint64_t offset, length; /* in the pack; offset 0: a large object, stored in a separate file */
};

/* Take the tables of objects from a file and the pack with their content. Return an error number or 0. */
int open_objects(int tables, int pack);

/* Return an error number, MISSING or 0. */
int find(const uint8_t digest[32], struct place *place);

/* Read the object at the first of these places, and check it. The data are valid until the next call. Objects that follow
 * it in the pack as they do here are read at the same time, and checked when they are asked for. */
int content(const struct place *places, uint32_t count, const uint8_t digest[32], const char **data);
