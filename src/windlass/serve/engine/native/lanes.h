// Eight floats at a time, and the few functions of them that a transformer needs.
//
// Nothing here depends on how many rows a batch has: a row's result is the same chain of operations
// whatever stands beside it. The build switches contraction off (-ffp-contract=off), so that a product
// and a sum are fused only where `fma` says so.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace windlass {

using Lanes = __m256;
using Words = __m256i;

constexpr int kLanes = 8;

inline Lanes load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Lanes value) { _mm256_storeu_ps(to, value); }
inline Lanes all(float value) { return _mm256_set1_ps(value); }
inline Lanes zero() { return _mm256_setzero_ps(); }
inline Lanes fma(Lanes a, Lanes b, Lanes sum) { return _mm256_fmadd_ps(a, b, sum); }

// A bfloat16 is the upper half of a float32.
inline Lanes load(const uint16_t* from) {
    __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// float16, in which keys and values may be kept.
struct Half {
    uint16_t bits;
};
inline Lanes load(const Half* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store(Half* to, Lanes value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

inline float sum(Lanes value) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline float largest(Lanes value) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// e^x to about two units in the last place: x = n ln 2 + r, a polynomial of degree six for e^r (its
// coefficients are those of the series, which suffice on |r| <= ln(2)/2), and 2^n by the exponent bits.
inline Lanes exp(Lanes x) {
    // Not-a-number passes through: min and max return their second operand when one is not a number.
    x = _mm256_max_ps(all(-87.3f), _mm256_min_ps(all(88.3f), x));
    Lanes n = _mm256_round_ps(_mm256_mul_ps(x, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Lanes r = fma(n, all(-0.693359375f), x);
    r = fma(n, all(2.12194440e-4f), r);
    Lanes p = all(1.0f / 720.0f);
    p = fma(p, r, all(1.0f / 120.0f));
    p = fma(p, r, all(1.0f / 24.0f));
    p = fma(p, r, all(1.0f / 6.0f));
    p = fma(p, r, all(0.5f));
    p = fma(p, r, all(1.0f));
    p = fma(p, r, all(1.0f));
    Words exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

// x / (1 + e^-x)
inline Lanes silu(Lanes x) {
    return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp(_mm256_sub_ps(zero(), x))));
}

// GELU in its tanh form: x times the logistic function of twice the tanh's argument.
inline Lanes gelu_tanh(Lanes x) {
    Lanes cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
    Lanes inner = _mm256_mul_ps(all(1.59576912f), fma(cube, all(0.044715f), x));
    return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp(_mm256_sub_ps(zero(), inner))));
}

inline Lanes magnitude(Lanes x) { return _mm256_andnot_ps(all(-0.0f), x); }

// GELU: x times the normal distribution up to x. Its tail is half of erfc(|x| / root of 2), by formula 7.1.26 of
// Abramowitz and Stegun, which is within 1.5e-7.
inline Lanes gelu(Lanes x) {
    Lanes z = _mm256_mul_ps(magnitude(x), all(0.707106781f));
    Lanes t = _mm256_div_ps(all(1.0f), fma(z, all(0.3275911f), all(1.0f)));
    Lanes p = all(1.061405429f);
    p = fma(p, t, all(-1.453152027f));
    p = fma(p, t, all(1.421413741f));
    p = fma(p, t, all(-0.284496736f));
    p = fma(p, t, all(0.254829592f));
    p = _mm256_mul_ps(p, t);
    Lanes tail = _mm256_mul_ps(_mm256_mul_ps(all(0.5f), p), exp(_mm256_sub_ps(zero(), _mm256_mul_ps(z, z))));
    Lanes is_negative = _mm256_cmp_ps(x, zero(), _CMP_LT_OQ);
    return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(all(1.0f), tail), tail, is_negative));
}

// tanh x = 1 - 2 / (1 + e^2|x|) with the sign of x; below 0.4, where that loses digits, by its series.
inline Lanes tanh(Lanes x) {
    Lanes size = magnitude(x), square = _mm256_mul_ps(x, x);
    Lanes e = exp(_mm256_add_ps(size, size));
    Lanes far = _mm256_sub_ps(all(1.0f), _mm256_div_ps(all(2.0f), _mm256_add_ps(e, all(1.0f))));
    far = _mm256_or_ps(far, _mm256_and_ps(x, all(-0.0f)));
    Lanes p = all(-1382.0f / 155925.0f);
    p = fma(p, square, all(62.0f / 2835.0f));
    p = fma(p, square, all(-17.0f / 315.0f));
    p = fma(p, square, all(2.0f / 15.0f));
    p = fma(p, square, all(-1.0f / 3.0f));
    Lanes near = fma(_mm256_mul_ps(p, square), x, x);
    return _mm256_blendv_ps(far, near, _mm256_cmp_ps(size, all(0.4f), _CMP_LT_OQ));
}

inline int rounded_up(int value, int to) { return (value + to - 1) / to * to; }

}  // namespace windlass
