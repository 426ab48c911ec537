/* What every kernel shares: types, always-inlined functions, mathematics. */
#ifndef PO_MATH_H
#define PO_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define PO_INLINE static inline __attribute__((always_inline, unused))
#else
#define PO_INLINE static inline
#endif

PO_INLINE float po_max(float a, float b) { return a > b ? a : b; }

PO_INLINE float po_min(float a, float b) { return a < b ? a : b; }

#endif
