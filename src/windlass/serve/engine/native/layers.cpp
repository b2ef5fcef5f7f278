#include "layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace windlass {
namespace {

constexpr float kGateLimit = 7.0f, kGateSteepness = 1.702f;  // of gpt-oss

Lanes least(Lanes a, float b) { return _mm256_min_ps(all(b), a); }
Lanes most(Lanes a, float b) { return _mm256_max_ps(all(b), a); }

template <class Make>
void by_lanes(int width, const Make& make) {
    for (int i = 0; i < width; i += kLanes) make(i, std::min(kLanes, width - i));
}

// Eight floats from an array that may end before them.
Lanes some_of(const float* from, int some) {
    float kept[kLanes] = {};
    std::memcpy(kept, from, some * sizeof(float));
    return load(kept);
}

void keep_some(float* to, Lanes values, int some) {
    float kept[kLanes];
    store(kept, values);
    std::memcpy(to, kept, some * sizeof(float));
}

template <class Function>
void each_gated(const float* gate, bool gated, int width, float* inner, const Function& function) {
    by_lanes(width, [&](int i, int some) {
        Lanes made = function(some_of(gate + i, some));
        if (gated) made = _mm256_mul_ps(made, some_of(gate + width + i, some));
        keep_some(inner + i, made, some);
    });
}

Lanes relu(Lanes x) { return most(x, 0.0f); }

void clamped_swiglu(const float* gate, int width, float* inner) {
    by_lanes(width, [&](int i, int some) {
        Lanes x = least(some_of(gate + i, some), kGateLimit);
        Lanes up = most(least(some_of(gate + width + i, some), kGateLimit), -kGateLimit);
        Lanes steep = _mm256_mul_ps(all(-kGateSteepness), x);
        Lanes made = _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp(steep)));
        keep_some(inner + i, _mm256_mul_ps(made, _mm256_add_ps(up, all(1.0f))), some);
    });
}

}  // namespace

void normalise(const float* from, float* to, int width, const Norm& norm, float epsilon, bool subtracts_mean) {
    int whole = width / kLanes * kLanes;
    float mean = 0.0f;
    if (subtracts_mean) {
        Lanes total = zero();
        for (int i = 0; i < whole; i += kLanes) total = _mm256_add_ps(total, load(from + i));
        mean = sum(total);
        for (int i = whole; i < width; i++) mean += from[i];
        mean /= float(width);
    }
    Lanes squares = zero();
    for (int i = 0; i < whole; i += kLanes) {
        Lanes value = _mm256_sub_ps(load(from + i), all(mean));
        squares = fma(value, value, squares);
    }
    float square = sum(squares);
    for (int i = whole; i < width; i++) square += (from[i] - mean) * (from[i] - mean);
    float scale = 1.0f / std::sqrt(square / float(width) + epsilon);
    for (int i = 0; i < width; i++) {
        float value = (from[i] - mean) * scale * norm.weight[i];
        to[i] = norm.bias ? value + norm.bias[i] : value;
    }
}

void activate(Activation kind, const float* gate, bool gated, int width, float* inner) {
    switch (kind) {
        case Activation::kSilu: return each_gated(gate, gated, width, inner, silu);
        case Activation::kGelu: return each_gated(gate, gated, width, inner, gelu);
        case Activation::kGeluTanh: return each_gated(gate, gated, width, inner, gelu_tanh);
        case Activation::kRelu: return each_gated(gate, gated, width, inner, relu);
        case Activation::kRelu2:
            return each_gated(gate, gated, width, inner, [](Lanes x) { return _mm256_mul_ps(relu(x), relu(x)); });
        case Activation::kClampedSwiglu: return clamped_swiglu(gate, width, inner);
    }
}

void turn(float* head, int pairs, const float* cosines, const float* sines) {
    float *a = head, *b = head + pairs;
    for (int i = 0; i < pairs; i++) {
        float left = a[i], right = b[i];
        a[i] = left * cosines[i] - right * sines[i];
        b[i] = right * cosines[i] + left * sines[i];
    }
}

void bound(float* values, int width, float cap) {
    by_lanes(width, [&](int i, int some) {
        Lanes share = _mm256_div_ps(some_of(values + i, some), all(cap));
        keep_some(values + i, _mm256_mul_ps(all(cap), tanh(share)), some);
    });
}

void soften(float* values, int width) {
    float highest = *std::max_element(values, values + width), total = 0.0f;
    by_lanes(width, [&](int i, int some) {
        keep_some(values + i, exp(_mm256_sub_ps(some_of(values + i, some), all(highest))), some);
    });
    for (int i = 0; i < width; i++) total += values[i];
    for (int i = 0; i < width; i++) values[i] /= total;
}

void multiply_by(float* values, int width, float factor) {
    for (int i = 0; i < width; i++) values[i] *= factor;
}

}  // namespace windlass
