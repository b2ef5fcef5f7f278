// Keys and values in blocks of 16 tokens, and attention over them.
//
// A block holds, for one layer and each key/value head, the keys as [channel][16 tokens] and the values as
// [16 tokens][channel]: both products then read whole registers. A sequence owns a table of block numbers.
// Every query goes over its keys in ascending order by itself, so a token gets the same result whether it
// comes alone, in a chunk of a prompt, or after tokens that another request computed. Where a layer has a
// window, it starts at the first block of which a query of its tile sees a key; what it may not see itself
// adds a share of zero.
#pragma once

#include <vector>

#include "lanes.h"
#include "memory.h"
#include "team.h"

namespace windlass {

constexpr int kBlockTokens = 16;

// Tokens of one sequence in a step: `rows` rows of the batch from `row`, at positions from `position`.
struct Span {
    int row, rows, position;
    const int32_t* table;
};

// In what a layer's attention differs from a plain softmax over all keys up to the query; 0 and null: in nothing.
struct Rule {
    int window = 0;                // how many keys a query sees, its own among them
    float softcap = 0.0f;          // scores become softcap * tanh(score / softcap)
    const float* sinks = nullptr;  // for each head, one more score in the softmax, which has no value
};

struct Heads {
    int heads, kv_heads, width;
    int padded() const { return rounded_up(width, kLanes); }
    int shared() const { return heads / kv_heads; }
};

template <class T>
class Blocks {
public:
    Blocks(const Heads& heads, int layers, int blocks)
        : heads_(heads), blocks_(blocks), kept_(size_t(layers) * blocks * 2 * heads.kv_heads * head_size()) {}

    T* keys(int layer, int block, int head) const { return at(layer, block, 0, head); }
    T* values(int layer, int block, int head) const { return at(layer, block, 1, head); }

    // Keep the keys and values of one token, `key` and `value` being those of its first head.
    void put(int layer, int block, int slot, const float* key, const float* value) const;

    // One phase of a team: mix what each query may see. `queries` are scaled already.
    void attend(Team& team, int layer, const std::vector<Span>& spans, const Rule& rule, const float* queries,
                int query_stride, float* out, int out_stride) const;

private:
    size_t head_size() const { return size_t(heads_.padded()) * kBlockTokens; }
    T* at(int layer, int block, int which, int head) const {
        return kept_.data() + (((size_t(layer) * blocks_ + block) * 2 + which) * heads_.kv_heads + head) * head_size();
    }

    Heads heads_;
    int blocks_;
    Piece<T> kept_;
};

extern template class Blocks<float>;
extern template class Blocks<Half>;

}  // namespace windlass
