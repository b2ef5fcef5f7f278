// What a layer does to one row at a time: norms, activations, the turning of heads and bounded logits.
//
// Every function sees the values of one row and nothing else, so the batch cannot change its bits.
#pragma once

#include "lanes.h"

namespace windlass {

enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kRelu2 = 4, kClampedSwiglu = 5 };

// The scale (1 is added to it already where a family stores it without) and, for some LayerNorms, the bias.
struct Norm {
    const float *weight = nullptr, *bias = nullptr;
    explicit operator bool() const { return weight; }
};

// RMSNorm, or LayerNorm, which subtracts the mean; `to` may be `from`.
void normalise(const float* from, float* to, int width, const Norm& norm, float epsilon, bool subtracts_mean);

// inner = activation(gate) * up, `up` standing behind `gate`; or activation(gate) alone.
void activate(Activation kind, const float* gate, bool gated, int width, float* inner);

// Turn pair i of a head, (i, i + pairs), by an angle; what stands behind the pairs stays.
void turn(float* head, int pairs, const float* cosines, const float* sines);

// cap * tanh(value / cap)
void bound(float* values, int width, float cap);

// Softmax.
void soften(float* values, int width);

void multiply_by(float* values, int width, float factor);

}  // namespace windlass
