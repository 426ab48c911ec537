/* Functions of <math.h> in float32 that need no RAM; C libraries keep errno there.

   Polynomials and reductions are those of the Cephes library (S. L. Moshier, netlib.org/cephes, single precision).
   Where the result is a normal number, exp, log and tanh are off by at most 1.5 units in the last place, and erf by 2.5;
   sin and cos by some 1.5 for arguments up to some hundreds. powf is exp(y log x); its error grows with |y log x|. */

#include <math.h>
#include <stdint.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    (void)memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits)
{
    float x;
    (void)memcpy(&x, &bits, sizeof x);
    return x;
}

/* c[0] x^(n-1) + ... + c[n-1] */
static float polynomial(float x, const float *c, int n)
{
    float sum = c[0];
    for (int k = 1; k < n; k++) {
        sum = sum * x + c[k];
    }
    return sum;
}

/* x 2^k for -252 <= k <= 254, by two factors, so that subnormal results are rounded once. */
static float scaled(float x, int k)
{
    const int half = k / 2;
    return x * from_bits((uint32_t)(half + 127) << 23) * from_bits((uint32_t)(k - half + 127) << 23);
}

float fabsf(float x)
{
    return from_bits(bits_of(x) & 0x7FFFFFFFu);
}

float copysignf(float x, float sign)
{
    return from_bits((bits_of(x) & 0x7FFFFFFFu) | (bits_of(sign) & 0x80000000u));
}

float fmaxf(float a, float b)
{
    return (a > b || b != b) ? a : b;
}

float fminf(float a, float b)
{
    return (a < b || b != b) ? a : b;
}

float truncf(float x)
{
    /* Every float from 2^23 on is an integer. */
    return fabsf(x) < 8388608.0f ? copysignf((float)(int32_t)x, x) : x;
}

float floorf(float x)
{
    const float whole = truncf(x);
    return whole > x ? whole - 1.0f : whole;
}

float ceilf(float x)
{
    const float whole = truncf(x);
    return copysignf(whole < x ? whole + 1.0f : whole, x);
}

float rintf(float x)
{
    /* A sum with 2^23 has no bits for a fraction, so that it is rounded, halves to even. */
    const volatile float shift = copysignf(8388608.0f, x);
    const volatile float sum = x + shift;
    return fabsf(x) < 8388608.0f ? copysignf(sum - shift, x) : x;
}

float sqrtf(float x)
{
#if defined(__ARM_FP) && (__ARM_FP & 4)
    float root;
    __asm__("vsqrt.f32 %0, %1" : "=t"(root) : "t"(x));
    return root;
#else
    /* Integer square root bit by bit, rounded to nearest. */
    uint32_t bits = bits_of(x);
    int exponent = (int)(bits >> 23);
    uint32_t rest = bits & 0x7FFFFFu;
    uint32_t root = 0, sum = 0;
    if (!(x > 0.0f) || exponent == 255) {
        return x == 0.0f || x > 0.0f ? x : (x - x) / (x - x);
    }
    if (exponent == 0) {
        exponent = 1;
        while ((rest & 0x800000u) == 0) {
            rest <<= 1;
            exponent--;
        }
    }
    rest |= 0x800000u;
    exponent -= 127;
    if (exponent & 1) {
        rest <<= 1;
        exponent--;
    }
    rest <<= 1;
    for (uint32_t bit = 0x1000000u; bit != 0; bit >>= 1) {
        const uint32_t next = sum + bit;
        if (next <= rest) {
            sum = next + bit;
            rest -= next;
            root += bit;
        }
        rest <<= 1;
    }
    root += rest != 0 ? root & 1u : 0u;
    return from_bits((root >> 1) + ((uint32_t)(exponent / 2 + 126) << 23));
#endif
}

float expf(float x)
{
    static const float c[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                               4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    float k;
    if (x != x) {
        return x;
    }
    if (x > 88.7228394f) {
        return INFINITY;
    }
    if (x < -103.972084f) {
        return 0.0f;
    }
    k = floorf(1.44269504088896341f * x + 0.5f);
    x -= k * 0.693359375f;
    x -= k * -2.12194440e-4f;
    return scaled(polynomial(x, c, 6) * (x * x) + x + 1.0f, (int)k);
}

float logf(float x)
{
    static const float c[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                               -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                               2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
    int e = 0;
    float z, y;
    if (x != x || x < 0.0f) {
        return x < 0.0f ? NAN : x;
    }
    if (x == 0.0f) {
        return -INFINITY;
    }
    if (x > 3.40282347e38f) {
        return x;
    }
    if (x < 1.17549435e-38f) {
        x *= 8388608.0f;
        e = -23;
    }
    e += (int)(bits_of(x) >> 23) - 126;
    x = from_bits((bits_of(x) & 0x7FFFFFu) | 0x3F000000u);
    if (x < 0.707106781186547524f) {
        e -= 1;
        x = x + x - 1.0f;
    } else {
        x -= 1.0f;
    }
    z = x * x;
    y = polynomial(x, c, 9) * x * z;
    y += -2.12194440e-4f * (float)e;
    y += -0.5f * z;
    return x + y + 0.693359375f * (float)e;
}

float tanhf(float x)
{
    static const float c[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                               -3.33332819422e-1f};
    const float size = fabsf(x);
    if (x != x) {
        return x;
    }
    if (size > 9.1f) {
        return copysignf(1.0f, x);
    }
    if (size >= 0.625f) {
        return copysignf(1.0f - 2.0f / (expf(size + size) + 1.0f), x);
    }
    return polynomial(x * x, c, 5) * (x * x) * x + x;
}

static float erfc_from_1(float x)
{
    static const float near[9] = {2.326819970068386e-2f, -1.387039388740657e-1f, 3.687424674597105e-1f,
                                  -5.824733027278666e-1f, 6.210004621745983e-1f, -4.944515323274145e-1f,
                                  3.404879937665872e-1f, -2.741127028184656e-1f, 5.638259427386472e-1f};
    static const float far[8] = {-1.047766399936249e+1f, 1.297719955372516e+1f, -7.495518717768503e+0f,
                                 2.921019019210786e+0f,  -1.015265279202700e+0f, 4.218463358204948e-1f,
                                 -2.820767439740514e-1f, 5.641895067754075e-1f};
    const float q = 1.0f / x;
    const float y = q * q;
    return expf(-x * x) * q * (x < 2.0f ? polynomial(y, near, 9) : polynomial(y, far, 8));
}

float erff(float x)
{
    static const float c[7] = {7.853861353153693e-5f,  -8.010193625184903e-4f, 5.188327685732524e-3f,
                               -2.685381193529856e-2f, 1.128358514861418e-1f,  -3.761262582423300e-1f,
                               1.128379165726710e+0f};
    const float size = fabsf(x);
    if (x != x) {
        return x;
    }
    if (size > 4.0f) {
        return copysignf(1.0f, x);
    }
    return size > 1.0f ? copysignf(1.0f - erfc_from_1(size), x) : x * polynomial(x * x, c, 7);
}

float powf(float x, float y)
{
    const float whole = truncf(y);
    const int odd = fabsf(y) < 16777216.0f && whole == y && ((int32_t)y & 1) != 0;
    float made = 1.0f;
    if (y == 0.0f || x == 1.0f) {
        return 1.0f;
    }
    if (whole == y && fabsf(y) <= 64.0f) {
        for (int32_t k = (int32_t)fabsf(y); k > 0; k--) {
            made *= x;
        }
        return y < 0.0f ? 1.0f / made : made;
    }
    if (x < 0.0f && whole != y) {
        return NAN;
    }
    if (x == 0.0f) {
        return y < 0.0f ? INFINITY : 0.0f;
    }
    made = expf(y * logf(fabsf(x)));
    return x < 0.0f && odd ? -made : made;
}

/* Functions of doubles, for the few scalars that an optimizer computes in each step. */
double sqrt(double x)
{
    double root = (double)sqrtf((float)x);
    if (!(root > 0.0) || !(root < 3.0e38)) {
        return root;
    }
    for (int k = 0; k < 3; k++) {
        root = 0.5 * (root + x / root);
    }
    return root;
}

double pow(double x, double y)
{
    return (double)powf((float)x, (float)y);
}

/* sin(x + quarter * pi / 2) */
static float sine(float x, int quarter)
{
    static const float s[3] = {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f};
    static const float c[3] = {2.443315711809948e-5f, -1.388731625493765e-3f, 4.166664568298827e-2f};
    const float k = rintf(x * 0.636619772367581343f);
    const int turn = ((int)k + quarter) & 3;
    float z, y;
    if (!(fabsf(x) < 3.4e38f)) {
        return NAN;
    }
    x -= k * 1.5703125f;
    x -= k * 4.837512969970703125e-4f;
    x -= k * 7.549789948768648e-8f;
    z = x * x;
    y = (turn & 1) != 0 ? 1.0f - 0.5f * z + polynomial(z, c, 3) * z * z : polynomial(z, s, 3) * z * x + x;
    return (turn & 2) != 0 ? -y : y;
}

float sinf(float x)
{
    return sine(x, 0);
}

float cosf(float x)
{
    return sine(x, 1);
}
