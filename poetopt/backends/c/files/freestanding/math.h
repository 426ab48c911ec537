/* For compilers without a C library: declarations of the functions in po_libm.c. */
#ifndef PO_FREESTANDING_MATH_H
#define PO_FREESTANDING_MATH_H

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

double pow(double x, double y);
double sqrt(double x);
float ceilf(float x);
float copysignf(float x, float sign);
float cosf(float x);
float erff(float x);
float expf(float x);
float fabsf(float x);
float floorf(float x);
float fmaxf(float a, float b);
float fminf(float a, float b);
float logf(float x);
float powf(float x, float y);
float rintf(float x);
float sinf(float x);
float sqrtf(float x);
float tanhf(float x);
float truncf(float x);

#endif
