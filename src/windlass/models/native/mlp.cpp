// The context MLP (models/mlp.py) for those who ask for the scores of a few sequences at a time.
//
// A row's scores are the same bits whatever rows stand beside it and however many threads divide the outputs:
// every number is one chain of operations over its own row.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "lanes.h"

using namespace windlass;

extern "C" {

// Matrices are rows of outputs, contiguous; `layers` lists norm, up and down of each layer.
struct WindlassMlp {
    const float* embedding;
    const float* mix;
    const float* norm;
    const float* const* layers;
    int32_t vocabulary, width, ffn_width, window, depth;
    float epsilon;
};

}  // extern "C"

namespace {

constexpr int64_t kWorthAThread = 1 << 21;  // multiply-adds that take longer than to start a thread

typedef std::vector<float> Floats;

void multiply_some(const float* x, int64_t rows, const float* w, int64_t n, int64_t k, float* y, int64_t from,
                   int64_t until) {
    for (int64_t at = from; at < until; at += 4) {
        const float* b = w + at * k;
        bool whole = at + 4 <= until;
        int64_t m = 0;
        for (; whole && m + 2 <= rows; m += 2) dots<2, 4>(x + m * k, k, b, k, k, y + m * n + at, n);
        for (; whole && m < rows; ++m) dots<1, 4>(x + m * k, k, b, k, k, y + m * n + at, n);
        for (; m < rows; ++m)
            for (int64_t one = at; one < until; ++one) dots<1, 1>(x + m * k, k, w + one * k, k, k, y + m * n + one, n);
    }
}

// y[m][n] = sum over k of x[m][k] w[n][k]
void multiply(const float* x, int64_t rows, const float* w, int64_t n, int64_t k, float* y, int threads) {
    int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads, rows * n * k / kWorthAThread));
    int64_t each = (n + parts - 1) / parts;
    std::vector<std::thread> team;
    for (int64_t from = each; from < n; from += each)
        team.emplace_back(multiply_some, x, rows, w, n, k, y, from, std::min(n, from + each));
    multiply_some(x, rows, w, n, k, y, 0, std::min(n, each));
    for (std::thread& one : team) one.join();
}

void normalize(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon, float* to) {
    for (int64_t m = 0; m < rows; ++m, x += width, to += width) {
        float square;
        dots<1, 1>(x, width, x, width, width, &square, 1);
        float scale = 1.0f / std::sqrt(square / width + epsilon);
        for (int64_t d = 0; d < width; ++d) to[d] = weight[d] * (x[d] * scale);
    }
}

// e^x for -87 < x < 88: x = n ln 2 + r with |r| <= ln(2)/2, a polynomial for e^r, and 2^n by the exponent bits.
inline float power_of_e(float x) {
    x = std::min(88.0f, std::max(-87.0f, x));
    float n = std::floor(x * 1.44269504f + 0.5f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720))))));
    int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

void gelu(Floats& x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        float v = x[i];
        x[i] = v / (1.0f + power_of_e(-1.59576912f * (v + 0.044715f * v * v * v)));
    }
}

void log_softmax(float* row, int64_t count) {
    float largest = *std::max_element(row, row + count);
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += power_of_e(row[i] - largest);
    float norm = largest + static_cast<float>(std::log(total));
    for (int64_t i = 0; i < count; ++i) row[i] -= norm;
}

}  // namespace

extern "C" {

// The vectors of the last tokens, oldest first; zeros where a state says -1: before the beginning.
void windlass_mlp_scores(const WindlassMlp* model, const int32_t* states, int64_t rows, int32_t threads,
                         float* scores) {
    const WindlassMlp& m = *model;
    int64_t width = m.width, inner = m.ffn_width, wide = m.window * width;
    Floats mixed(rows * wide), x(rows * width), h(rows * width), up(rows * inner);
    for (int64_t i = 0; i < rows * m.window; ++i)
        if (states[i] >= 0) std::memcpy(&mixed[i * width], m.embedding + states[i] * width, width * sizeof(float));
    multiply(mixed.data(), rows, m.mix, width, wide, x.data(), threads);
    for (int layer = 0; layer < m.depth; ++layer) {
        const float* const* own = m.layers + 3 * layer;
        normalize(x.data(), own[0], rows, width, m.epsilon, h.data());
        multiply(h.data(), rows, own[1], inner, width, up.data(), threads);
        gelu(up, rows * inner);
        multiply(up.data(), rows, own[2], width, inner, h.data(), threads);
        for (int64_t i = 0; i < rows * width; ++i) x[i] += h[i];
    }
    normalize(x.data(), m.norm, rows, width, m.epsilon, h.data());
    multiply(h.data(), rows, m.embedding, m.vocabulary, width, scores, threads);
    for (int64_t row = 0; row < rows; ++row) log_softmax(scores + row * m.vocabulary, m.vocabulary);
}

}  // extern "C"
