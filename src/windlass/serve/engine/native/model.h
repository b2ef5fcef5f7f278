// A transformer ready to be run: packed weights, blocks of keys and values, and the workspace of a step.
#pragma once

#include <algorithm>
#include <memory>
#include <variant>
#include <vector>

#include "attention.h"
#include "layers.h"
#include "matrix.h"

namespace windlass {

// The matrices of a layer that stand between two phases; q, k and v are one, and so are gate and up.
enum Place : int { kMix = 0, kOut = 1, kUp = 2, kDown = 3, kPlaces = 4 };

// A LoRA adapter's part in one matrix: out[column ...] += b (a x); the scale is within b.
struct Delta {
    int column;
    const Matrix *a, *b;
};

// The norms of a layer. A layer has those of the input of its parts, of their output, or both.
enum Which : int { kAttentionNorm = 0, kFfnNorm = 1, kAttentionPostNorm = 2, kFfnPostNorm = 3, kQueryNorm = 4, kKeyNorm = 5,
                   kNorms = 6 };

// down(activation(gate) * up): of an expert, or of what all tokens pass next to the experts.
struct FeedForward {
    const Matrix *up = nullptr, *down = nullptr;
    const float *up_bias = nullptr, *down_bias = nullptr;
};

// A layer with experts has them in place of the matrices kUp and kDown.
struct Layer {
    const Matrix* matrices[kPlaces] = {};
    const float* biases[kPlaces] = {};
    Norm norms[kNorms];
    Rule rule;
    int angles = -1;  // which table of angles turns queries and keys; -1: none
    std::vector<FeedForward> experts;
    const Matrix* router = nullptr;
    const float* router_bias = nullptr;
    FeedForward shared;
    const Matrix* shared_gate = nullptr;
};

// An expert of a row, what its result is multiplied by, and where the row stands among all that are gathered.
struct Choice {
    int expert, slot;
    float weight;
};

// Rows with memory of their own.
struct KeptRows : Rows {
    void reserve(int count, int width);

private:
    Piece<float> floats_;
    Piece<uint8_t> bytes_;
    std::vector<float> row_scales_;
};

struct Adapter {
    std::vector<std::vector<Delta>> deltas;  // [layer * kPlaces + place]
};

// What all layers have in common. A factor of 1 and a softcap of 0 change nothing.
struct Config {
    int layers, width, heads, kv_heads, head_width, ffn_width, vocabulary, context;
    int subtracts_mean;        // LayerNorm instead of RMSNorm
    int activation, is_gated;
    int is_parallel;           // attention and feed-forward read the same input
    int norms_heads;           // query and key norms are of each head, not of all heads together
    int tables, pairs;         // of angles; how many pairs of a head they turn
    int experts, experts_per_token, expert_width, shared_width, normalises_experts;
    float epsilon, attention_scale, embedding_scale, residual_scale, logit_scale, logit_softcap;
    int half_keys, blocks;
};

// What a step computes: `spans` of (row, rows, position, first entry of its table, adapter or -1).
struct Batch {
    int rows, spans, outs;
    const int32_t *tokens, *span_fields, *tables, *out_rows;
    float* logits;  // (outs, vocabulary), or null
    float* hidden;  // (rows, width) after the last norm, or null
};

// Rows that lie a multiple of 4096 bytes apart would fight for the same lines of the first cache.
inline int stride_of(int width) {
    int stride = rounded_up(width, 16);
    return stride % 1024 ? stride : stride + 16;
}

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
    const float* head_bias = nullptr;
    Norm last_norm;

private:
    void reserve(int rows);
    void embed(const Batch& batch, const Span& span, int row);
    void normalise_row(const float* from, float* to, const Norm& norm) const;
    void read(int row, const Norm& norm, bool integers);
    void prepare(Rows& rows, int row, int width, bool integers) const;
    void turn_and_keep(int layer, const Span& span, int row);
    void norm_heads(float* heads, int count, const Norm& norm) const;
    void add(int row, const Norm& norm);
    void apply(Team& team, int layer, Place place, const Rows& in, int rows, float* out, int stride, Then then);
    void feed(int row, int width, bool integers);

    void reserve_experts();
    void run_experts(Team& team, const Layer& layer, int rows);
    void run_shared(Team& team, const Layer& layer, int rows);
    void choose(int row);
    void order(int slots);
    void collect(const Layer& layer, int row);

    void score(Team& team, const Batch& batch);

    // Whether the outputs of a layer's parts are added to the residual stream as they are.
    bool adds_directly(const Layer& layer) const {
        return !config.is_parallel && config.residual_scale == 1.0f && !layer.norms[kAttentionPostNorm];
    }
    float* stream(int row) const { return x_ + size_t(row) * x_stride_; }
    int mix_width() const { return (config.heads + 2 * config.kv_heads) * config.head_width; }
    int attention_width() const { return config.heads * config.head_width; }
    int inner_width() const { return std::max(config.ffn_width, config.shared_width); }
    int up_stride() const { return stride_of(config.is_gated ? 2 * inner_width() : inner_width()); }

    Heads heads_;
    std::variant<Blocks<float>, Blocks<Half>> blocks_;
    std::vector<float> cosines_, sines_;  // [table][position][pair]
    int capacity_ = 0, x_stride_ = 0;
    Piece<float> kept_;
    Piece<uint8_t> kept_levels_;
    std::vector<float> scales_;
    float *x_ = nullptr, *y_ = nullptr, *mix_ = nullptr, *up_ = nullptr, *low_rank_ = nullptr;
    Rows normed_, mixed_, inner_;
    KeptRows gathered_, expert_up_, expert_inner_, routes_;
    std::vector<float> shared_gates_;
    std::vector<Choice> choices_;
    std::vector<int> first_;  // the first slot of each expert
    std::vector<Span> spans_;
    std::vector<int> adapter_of_span_;
};

}  // namespace windlass
