// Weights packed for multiplication, and the products.
//
// A matrix W of N rows and K columns multiplies rows of activations: y[m][n] = sum over k of x[m][k] W[n][k].
// It is packed in panels of 16 rows of W. A panel holds, for every k (for every four k where weights are
// integers), what its 16 outputs need, so a product reads memory in one stream and each output is a chain
// over ascending k: the same chain for one row and for a thousand. That is what makes answers independent
// of company.
//
// Integers: weights are within [-64, 64] (8 bits) or [-8, 7] (4 bits) with one scale for each output and
// group of k; a row of activations is turned into 255 levels around 128, so that the sums of pairs of
// products stay below 2^15, where vpmaddubsw would saturate.
#pragma once

#include <cstdint>
#include <memory>

#include "memory.h"
#include "team.h"

namespace windlass {

constexpr int kPanel = 16;

enum class Kind : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };

// Activations of a step: `rows` of `width` floats, `stride` apart. `levels` and `scales` are the same rows
// as integers, there only if a matrix of integers reads them.
struct Rows {
    float* values = nullptr;
    int stride = 0;
    uint8_t* levels = nullptr;
    int level_stride = 0;
    float* scales = nullptr;
};

class Matrix {
public:
    Matrix(Kind kind, int n, int k, int group) : kind(kind), n(n), k(k), group(group) {}

    const Kind kind;
    const int n, k, group;  // group: how many k share a scale; 0 for floats

    bool is_integer() const { return kind == Kind::kInt8 || kind == Kind::kInt4; }
    int panels() const { return (n + kPanel - 1) / kPanel; }
    int padded_k() const { return is_integer() ? (k + group - 1) / group * group : k; }
    int groups() const { return is_integer() ? padded_k() / group : 0; }

    Piece<float> floats;       // [panel][k][16]
    Piece<uint16_t> halves;    // [panel][k][16]
    Piece<int8_t> bytes;       // int8: [panel][k/4][16][4]; int4: [panel][k/4][8][4], low nibble: first 8 outputs
    Piece<float> scales;       // [panel][group][16]
    Piece<int32_t> offsets;    // [panel][group][16]: what the 128 of the activations adds, with a minus

    // Copy row n of W as floats: an embedding is looked up in the matrix that also makes the scores.
    void row(int n, float* out) const;
};

std::unique_ptr<Matrix> pack_floats(int n, int k, const float* values);
std::unique_ptr<Matrix> pack_halves(int n, int k, const uint16_t* values);
std::unique_ptr<Matrix> pack_int8(int n, int k, int group, const int8_t* values, const float* scales);
std::unique_ptr<Matrix> pack_int4(int n, int k, int group, const uint8_t* values, const float* scales);

// Turn a row of floats into levels.
void quantise(const float* values, int width, uint8_t* levels, int padded_width, float* scale);

enum class Then : int { kStore, kAdd };

// One phase of a team: out[m][n] = or += product + bias, for `rows` rows. `bias` may be null.
void multiply(Team& team, const Matrix& matrix, const Rows& in, int rows, float* out, int out_stride,
              const float* bias, Then then);

}  // namespace windlass
