/* For compilers without a C library. */
#ifndef PO_FREESTANDING_STRING_H
#define PO_FREESTANDING_STRING_H

#include <stddef.h>

int memcmp(const void *a, const void *b, size_t count);
void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
size_t strlen(const char *text);

#endif
