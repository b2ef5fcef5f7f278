// Eight floats at a time, in the compiler's own vectors: the same source on any processor.
//
// The build switches contraction off (-ffp-contract=off); a product and a sum are fused only where `fma` says so,
// so that a row's result does not depend on how a compiler arranged the code for the rows beside it.
#pragma once

#include <cstdint>

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace windlass {

typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Words __attribute__((vector_size(32)));

constexpr int kLanes = 8;

inline Lanes load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline void store(float* to, Lanes value) { *reinterpret_cast<Lanes*>(to) = value; }
inline Lanes all(float v) { return Lanes{v, v, v, v, v, v, v, v}; }

inline Lanes fma(Lanes a, Lanes b, Lanes sum) {
#ifdef __FMA__
    return _mm256_fmadd_ps(a, b, sum);
#else
    return a * b + sum;
#endif
}

inline float sum(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// The sums of C rows of `a` with N rows of `b`, each of k floats. Every sum is the same chain whatever C and N.
template <int C, int N>
inline void dots(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t k, float* to,
                 int64_t to_stride) {
    Lanes sums[C][N];
    for (int c = 0; c < C; ++c)
        for (int n = 0; n < N; ++n) sums[c][n] = all(0.0f);
    int64_t d = 0;
    for (; d + kLanes <= k; d += kLanes) {
        Lanes h[C];
        for (int c = 0; c < C; ++c) h[c] = load(a + c * a_stride + d);
        for (int n = 0; n < N; ++n) {
            Lanes o = load(b + n * b_stride + d);
            for (int c = 0; c < C; ++c) sums[c][n] = fma(h[c], o, sums[c][n]);
        }
    }
    for (int c = 0; c < C; ++c)
        for (int n = 0; n < N; ++n) {
            float total = sum(sums[c][n]);
            for (int64_t e = d; e < k; ++e) total += a[c * a_stride + e] * b[n * b_stride + e];
            to[c * to_stride + n] = total;
        }
}

}  // namespace windlass
