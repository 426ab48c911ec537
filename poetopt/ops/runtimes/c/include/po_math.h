/* Types, inlined functions and mathematics for all kernels, with the same bits on every machine.
 *
 * exp, log, tanh and erf are implemented here (after Cephes: range reduction and a polynomial, within 2 ulp), as C
 * libraries round differently. sqrtf and fabsf are exact by IEEE 754. Compile with -ffp-contract=off. */
#ifndef PO_MATH_H
#define PO_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define PO_INLINE static inline __attribute__((always_inline, unused))
#define PO_SHARED static __attribute__((noinline, unused))
#else
#define PO_INLINE static inline
#define PO_SHARED static
#endif

/* Terms that are added up in one register before their sum is added to the total. */
#define PO_PART 64

/* Unrolls the next loop `n` times, with the same bits. With -DPO_SMALL the code is smaller and slower. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__ARM_FP) && !defined(PO_SMALL)
#define PO_PRAGMA(text) _Pragma(#text)
#define PO_UNROLL(n) PO_PRAGMA(GCC unroll n)
#define PO_APART __asm__ volatile("" ::: "memory") /* keeps the compiler from mixing iterations, for lack of registers */
#else
#define PO_UNROLL(n)
#define PO_APART (void)0
#endif

PO_INLINE float po_max(float a, float b) { return a > b ? a : b; }

PO_INLINE float po_min(float a, float b) { return a < b ? a : b; }

PO_INLINE int32_t po_larger(int32_t a, int32_t b) { return a > b ? a : b; }

PO_INLINE int32_t po_smaller(int32_t a, int32_t b) { return a < b ? a : b; }

/* a / b rounded up, for b > 0. */
PO_INLINE int32_t po_ceil_div(int32_t a, int32_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/* Quotient and remainder without traps: a division by 0 gives 0, and one by -1 wraps. */
#define PO_DIVISION(type, natural)                                                                                     \
    PO_INLINE type po_div_##type(type a, type b)                                                                       \
    {                                                                                                                  \
        return b == 0 ? 0 : b == -1 ? (type)(0u - (natural)a) : a / b;                                                 \
    }                                                                                                                  \
    PO_INLINE type po_rest_##type(type a, type b) { return b == 0 || b == -1 ? 0 : a % b; }

PO_DIVISION(int32_t, uint32_t)
PO_DIVISION(int64_t, uint64_t)

/* The remainder with the sign of b, as in ONNX's Mod. */
PO_INLINE int64_t po_mod(int64_t a, int64_t b)
{
    const int64_t rest = po_rest_int64_t(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* 2^n for a normal result. */
PO_INLINE float po_power_of_two(int32_t n)
{
    const int32_t bits = (n + 127) * 8388608;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

PO_SHARED float po_exp(float x)
{
    float n, r, p;
    int32_t k, half;
    if (x > 88.72284f) {
        return INFINITY;
    }
    if (!(x > -103.97f)) {
        return x < 0.0f ? 0.0f : x; /* underflow, or NaN */
    }
    k = (int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    n = (float)k;
    r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    half = k / 2;
    return p * po_power_of_two(half) * po_power_of_two(k - half);
}

PO_SHARED float po_log(float x)
{
    int32_t bits, e = 0;
    float m, z, y, n;
    if (!(x > 0.0f)) {
        return x < 0.0f || x > 0.0f || x != x ? NAN : -INFINITY;
    }
    if (x > 3.4028235e38f) {
        return x;
    }
    if (x < 1.17549435e-38f) {
        x *= 8388608.0f;
        e = -23;
    }
    memcpy(&bits, &x, sizeof bits);
    e += bits / 8388608 - 126;
    bits = bits % 8388608 + 126 * 8388608;
    memcpy(&m, &bits, sizeof m);
    if (m < 0.70710678f) {
        e -= 1;
        m = m + m - 1.0f;
    } else {
        m -= 1.0f;
    }
    z = m * m;
    y = 7.0376836292e-2f;
    y = y * m - 1.1514610310e-1f;
    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z;
    n = (float)e;
    y += n * -2.12194440e-4f;
    y -= 0.5f * z;
    return m + y + n * 0.693359375f;
}

PO_SHARED float po_tanh(float x)
{
    const float a = fabsf(x);
    float z, y;
    if (a >= 0.625f) {
        y = 1.0f - 2.0f / (po_exp(a + a) + 1.0f);
        return x < 0.0f ? -y : y;
    }
    z = x * x;
    y = -5.70498872745e-3f;
    y = y * z + 2.06390887954e-2f;
    y = y * z - 5.37397155531e-2f;
    y = y * z + 1.33314422036e-1f;
    y = y * z - 3.33332819422e-1f;
    return y * z * x + x;
}

PO_INLINE float po_sigmoid(float x) { return 1.0f / (1.0f + po_exp(-x)); }

PO_SHARED float po_erf(float x)
{
    const float a = fabsf(x);
    float z, q, y;
    if (a < 1.0f) {
        z = x * x;
        y = 7.853861353153693e-5f;
        y = y * z - 8.010193625184903e-4f;
        y = y * z + 5.188327685732524e-3f;
        y = y * z - 2.685381193529856e-2f;
        y = y * z + 1.128358514861418e-1f;
        y = y * z - 3.761262582423300e-1f;
        y = y * z + 1.128379165726710e+0f;
        return x * y;
    }
    q = 1.0f / a;
    z = q * q;
    if (a < 2.0f) {
        y = 2.326819970068386e-2f;
        y = y * z - 1.387039388740657e-1f;
        y = y * z + 3.687424674597105e-1f;
        y = y * z - 5.824733027278666e-1f;
        y = y * z + 6.210004621745983e-1f;
        y = y * z - 4.944515323274145e-1f;
        y = y * z + 3.404879937665872e-1f;
        y = y * z - 2.741127028184656e-1f;
        y = y * z + 5.638259427386472e-1f;
    } else {
        y = -1.047766399936249e+1f;
        y = y * z + 1.297719955372516e+1f;
        y = y * z - 7.495518717768503e+0f;
        y = y * z + 2.921019019210786e+0f;
        y = y * z - 1.015265279202700e+0f;
        y = y * z + 4.218463358204948e-1f;
        y = y * z - 2.820767439740514e-1f;
        y = y * z + 5.641895067754075e-1f;
    }
    y = 1.0f - po_exp(-a * a) * q * y;
    return x < 0.0f ? -y : y;
}

/* x^n in double; for integers n by squaring, so that the bits are the same everywhere. */
PO_SHARED double po_power(double x, double n)
{
    double result = 1.0;
    int32_t left;
    if (!(n >= 0.0 && n < 2147483647.0) || (double)(int32_t)n < n) {
        return pow(x, n);
    }
    for (left = (int32_t)n; left > 0; left /= 2) {
        if (left % 2 == 1) {
            result *= x;
        }
        x *= x;
    }
    return result;
}

/* x (1 + erf(x / sqrt 2)) / 2 */
PO_INLINE float po_gelu(float x) { return 0.5f * x * (1.0f + po_erf(x * 0.70710678f)); }

/* The derivative of po_gelu. */
PO_INLINE float po_gelu_slope(float x)
{
    return 0.5f * (1.0f + po_erf(x * 0.70710678f)) + x * 0.39894228f * po_exp(-0.5f * x * x);
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
PO_INLINE float po_gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + po_tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}

/* The derivative of po_gelu_tanh. */
PO_INLINE float po_gelu_tanh_slope(float x)
{
    const float t = po_tanh(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

#endif
