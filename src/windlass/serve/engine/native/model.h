// A transformer ready to be run: packed weights, blocks of keys and values, and the workspace of a step.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "attention.h"
#include "matrix.h"

namespace windlass {

enum class Family : int { kLlama = 0, kGpt2 = 1 };

// The matrices of a layer that stand between two phases; q, k and v are one, and so are gate and up.
enum Place : int { kMix = 0, kOut = 1, kUp = 2, kDown = 3, kPlaces = 4 };

// A LoRA adapter's part in one matrix: out[column ...] += b (a x); the scale is within b.
struct Delta {
    int column;
    const Matrix *a, *b;
};

struct Layer {
    const Matrix* matrices[kPlaces] = {};
    const float* biases[kPlaces] = {};
    const float *norm_weights[2] = {}, *norm_biases[2] = {};
};

struct Adapter {
    std::vector<std::vector<Delta>> deltas;  // [layer * kPlaces + place]
};

struct Config {
    int family, layers, width, heads, kv_heads, head_width, ffn_width, vocabulary, context;
    float epsilon;
    int half_keys, blocks;
};

// What a step computes: `spans` of (row, rows, position, first entry of its table, adapter or -1).
struct Batch {
    int rows, spans, outs;
    const int32_t *tokens, *span_fields, *tables, *out_rows;
    float* logits;  // (outs, vocabulary), or null
    float* hidden;  // (rows, width) after the last norm, or null
};

class Model {
public:
    Model(const Config& config, const float* cosines, const float* sines);

    void run(Team& team, const Batch& batch);

    const Config config;
    std::vector<Layer> layers;
    std::vector<Adapter*> adapters;
    const Matrix* head = nullptr;          // also looked up for embeddings where there is no table
    const float* table = nullptr;          // embeddings in float32
    const uint16_t* table_halves = nullptr;
    const float* positions = nullptr;      // learned, gpt2
    const float *norm_weight = nullptr, *norm_bias = nullptr;

private:
    void reserve(int rows);
    void embed(const Batch& batch, const Span& span, int row);
    void normalise(const float* from, float* to, const float* weight, const float* bias) const;
    void prepare(Rows& rows, int row, int width, bool integers) const;
    void turn_and_keep(int layer, const Span& span, int row);
    void apply(Team& team, int layer, Place place, const Rows& in, int rows, float* out, int stride, Then then);
    void feed(int row, bool integers);

    int mix_width() const { return (config.heads + 2 * config.kv_heads) * config.head_width; }
    int attention_width() const { return config.heads * config.head_width; }
    int up_width() const { return config.family == int(Family::kLlama) ? 2 * config.ffn_width : config.ffn_width; }

    Heads heads_;
    std::variant<Blocks<float>, Blocks<Half>> blocks_;
    std::vector<float> cosines_, sines_;
    int capacity_ = 0;
    Piece<float> kept_;
    Piece<uint8_t> kept_levels_;
    std::vector<float> scales_;
    float *x_ = nullptr, *mix_ = nullptr, *up_ = nullptr, *low_rank_ = nullptr;
    Rows normed_, mixed_, inner_;
    std::vector<Span> spans_;
    std::vector<int> adapter_of_span_;
};

}  // namespace windlass
