#include "attention.h"

#include <algorithm>
#include <cmath>

#include "layers.h"

namespace windlass {
namespace {

constexpr int kTileRows = 6;
constexpr int kAhead = 3 * kBlockTokens;  // how far values are fetched ahead: about the latency of memory

// Up to six queries that look at the same head of keys. Keys are counted from the first block of the tile.
struct Tile {
    int rows, keys;
    int hidden[kTileRows];          // how many of the first keys the window hides from each query
    int seen[kTileRows];            // and where the keys end that it may look at
    float sinks[kTileRows];         // -infinity where there is none
    const float* queries[kTileRows];
    float* outs[kTileRows];
    float* weights[kTileRows];      // scores, then shares, of all keys
};

float* scratch(size_t floats) {
    static thread_local std::vector<float> kept;
    if (kept.size() < floats) kept.resize(floats);
    return kept.data();
}

// Blocks lie apart in memory, where the processor does not guess what is wanted next: it is told.
inline void fetch(const void* from) { _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0); }

template <int R, int B, class T>
void score_blocks(const Tile& tile, const T* const* keys, int width, int first, int blocks) {
    const T* next[B];
    for (int b = 0; b < B; b++) next[b] = keys[std::min(B + b, blocks - first - 1)];
    Lanes sums[R][2 * B];
    for (int r = 0; r < R; r++)
        for (int b = 0; b < 2 * B; b++) sums[r][b] = zero();
    for (int c = 0; c < width; c++) {
        for (int b = 0; b < B; b++) fetch(next[b] + c * kBlockTokens);
        Lanes key[2 * B];
        for (int b = 0; b < 2 * B; b++) key[b] = load(keys[b / 2] + c * kBlockTokens + b % 2 * kLanes);
        for (int r = 0; r < R; r++) {
            Lanes query = all(tile.queries[r][c]);
            for (int b = 0; b < 2 * B; b++) sums[r][b] = fma(query, key[b], sums[r][b]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int b = 0; b < 2 * B; b++) store(tile.weights[r] + first * kBlockTokens + b * kLanes, sums[r][b]);
}

// Turn scores into e^(score - highest), with 0 for keys that the query may not see; return one over their sum.
float soften(float* weights, int hidden, int seen, int keys, float sink) {
    Lanes most = all(-INFINITY);
    int whole = seen / kLanes * kLanes, end = rounded_up(keys, kLanes);
    for (int i = 0; i < hidden; i++) weights[i] = -INFINITY;
    for (int i = 0; i < whole; i += kLanes) most = _mm256_max_ps(most, load(weights + i));
    float highest = largest(most);
    for (int i = whole; i < seen; i++) highest = std::max(highest, weights[i]);
    if (sink > highest) highest = sink;
    for (int i = seen; i < end; i++) weights[i] = -INFINITY;
    Lanes total = zero();
    for (int i = 0; i < rounded_up(seen, kLanes); i += kLanes) {
        Lanes score = load(weights + i);
        Lanes share = exp(_mm256_sub_ps(score, all(highest)));
        share = _mm256_andnot_ps(_mm256_cmp_ps(score, all(-INFINITY), _CMP_EQ_OQ), share);
        store(weights + i, share);
        total = _mm256_add_ps(total, share);
    }
    for (int i = rounded_up(seen, kLanes); i < end; i++) weights[i] = 0.0f;
    if (sink == -INFINITY) return 1.0f / sum(total);
    return 1.0f / (sum(total) + _mm256_cvtss_f32(exp(all(sink - highest))));
}

template <int R, int W, class T>
void mix_columns(const Tile& tile, const T* const* values, int padded, int column, const float* inverse) {
    Lanes sums[R][W];
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++) sums[r][w] = zero();
    // The tile's first query sees the fewest keys at the end, its last the fewest at the start. What others see
    // beyond them is kept from a query altogether: zero times a value that is no number is no number.
    auto mix = [&](int key, bool is_seen_by_all) {
        const T* from = values[key / kBlockTokens] + key % kBlockTokens * padded + column;
        const T* later = values[std::min(key + kAhead, tile.keys - 1) / kBlockTokens] + key % kBlockTokens * padded;
        for (int w = 0; w < W; w += 2) fetch(later + column + w * kLanes);
        Lanes value[W];
        for (int w = 0; w < W; w++) value[w] = load(from + w * kLanes);
        for (int r = 0; r < R; r++) {
            if (!is_seen_by_all && (key >= tile.seen[r] || key < tile.hidden[r])) continue;
            Lanes share = all(tile.weights[r][key]);
            for (int w = 0; w < W; w++) sums[r][w] = fma(share, value[w], sums[r][w]);
        }
    };
    int first = std::min(tile.hidden[R - 1], tile.seen[0]);
    for (int key = 0; key < first; key++) mix(key, false);
    for (int key = first; key < tile.seen[0]; key++) mix(key, true);
    for (int key = tile.seen[0]; key < tile.keys; key++) mix(key, false);
    for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++)
            store(tile.outs[r] + column + w * kLanes, _mm256_mul_ps(sums[r][w], all(inverse[r])));
}

template <int R, class T>
void attend_tile(const Tile& tile, const T* const* keys, const T* const* values, const Heads& heads, float softcap) {
    constexpr int kBlocks = R == 1 ? 4 : R <= 3 ? 2 : 1;
    constexpr int kWide = R == 1 ? 8 : R <= 3 ? 4 : 2;
    constexpr int kLess = R == 1 ? 6 : 2;  // heads of 48 channels in one go
    int blocks = (tile.keys + kBlockTokens - 1) / kBlockTokens, b = 0;
    for (; b + kBlocks <= blocks; b += kBlocks) score_blocks<R, kBlocks>(tile, keys + b, heads.width, b, blocks);
    for (; b < blocks; b++) score_blocks<R, 1>(tile, keys + b, heads.width, b, blocks);
    float inverse[R];
    for (int r = 0; r < R; r++) {
        if (softcap > 0.0f) bound(tile.weights[r], tile.seen[r], softcap);
        inverse[r] = soften(tile.weights[r], tile.hidden[r], tile.seen[r], tile.keys, tile.sinks[r]);
    }
    int padded = heads.padded(), column = 0;
    for (; column + kWide * kLanes <= padded; column += kWide * kLanes)
        mix_columns<R, kWide>(tile, values, padded, column, inverse);
    for (; column + kLess * kLanes <= padded; column += kLess * kLanes)
        mix_columns<R, kLess>(tile, values, padded, column, inverse);
    for (; column + 2 * kLanes <= padded; column += 2 * kLanes)
        mix_columns<R, 2>(tile, values, padded, column, inverse);
    for (; column < padded; column += kLanes) mix_columns<R, 1>(tile, values, padded, column, inverse);
}

template <class T>
void attend_any(const Tile& tile, const T* const* keys, const T* const* values, const Heads& heads, float softcap) {
    switch (tile.rows) {
        case 1: return attend_tile<1>(tile, keys, values, heads, softcap);
        case 2: return attend_tile<2>(tile, keys, values, heads, softcap);
        case 3: return attend_tile<3>(tile, keys, values, heads, softcap);
        case 4: return attend_tile<4>(tile, keys, values, heads, softcap);
        case 5: return attend_tile<5>(tile, keys, values, heads, softcap);
        case 6: return attend_tile<6>(tile, keys, values, heads, softcap);
    }
}

}  // namespace

template <class T>
void Blocks<T>::put(int layer, int block, int slot, const float* key, const float* value) const {
    int padded = heads_.padded();
    for (int head = 0; head < heads_.kv_heads; head++) {
        T* to_keys = keys(layer, block, head) + slot;
        T* to_values = values(layer, block, head) + slot * padded;
        const float *from_key = key + head * heads_.width, *from_value = value + head * heads_.width;
        for (int c = 0; c < heads_.width; c += kLanes) {
            int some = std::min(kLanes, heads_.width - c);
            float pair[2][kLanes] = {};
            std::copy_n(from_key + c, some, pair[0]);
            std::copy_n(from_value + c, some, pair[1]);
            T kept[kLanes];
            store(kept, load(pair[0]));
            for (int i = 0; i < some; i++) to_keys[(c + i) * kBlockTokens] = kept[i];
            store(to_values + c, load(pair[1]));
        }
    }
}

template <class T>
void Blocks<T>::attend(Team& team, int layer, const std::vector<Span>& spans, const Rule& rule, const float* queries,
                       int query_stride, float* out, int out_stride) const {
    const int shared = heads_.shared();
    auto tiles_of = [&](const Span& span) { return (span.rows * shared + kTileRows - 1) / kTileRows; };
    int pieces = 0;
    for (const Span& span : spans) pieces += tiles_of(span) * heads_.kv_heads;
    team.each(pieces, [&](int piece) {
        size_t s = 0;
        while (piece >= tiles_of(spans[s]) * heads_.kv_heads) piece -= tiles_of(spans[s++]) * heads_.kv_heads;
        const Span& span = spans[s];
        int tiles = tiles_of(span), head = piece / tiles, all_rows = span.rows * shared;
        // The last tiles see the most keys; taken first, they leave no thread with a long rest.
        int first = int(int64_t(tiles - 1 - piece % tiles) * all_rows / tiles);
        int end = int(int64_t(tiles - piece % tiles) * all_rows / tiles);
        Tile tile;
        tile.rows = end - first;
        auto hidden_from = [&](int position) { return rule.window ? std::max(0, position + 1 - rule.window) : 0; };
        int first_block = hidden_from(span.position + first / shared) / kBlockTokens;
        int before = first_block * kBlockTokens;
        tile.keys = span.position + (end - 1) / shared + 1 - before;
        size_t long_row = rounded_up(tile.keys, kBlockTokens), blocks = long_row / kBlockTokens;
        float* weights = scratch(long_row * kTileRows + kTileRows * size_t(heads_.padded()));
        float* mixed = weights + long_row * kTileRows;
        for (int r = 0; r < tile.rows; r++) {
            int token = (first + r) / shared, of_head = head * shared + (first + r) % shared;
            tile.hidden[r] = std::max(0, hidden_from(span.position + token) - before);
            tile.seen[r] = span.position + token + 1 - before;
            tile.sinks[r] = rule.sinks ? rule.sinks[of_head] : -INFINITY;
            tile.queries[r] = queries + size_t(span.row + token) * query_stride + of_head * heads_.width;
            tile.outs[r] = mixed + r * heads_.padded();
            tile.weights[r] = weights + r * long_row;
        }
        static thread_local std::vector<const T*> where;
        where.resize(2 * blocks);
        for (size_t b = 0; b < blocks; b++) {
            where[b] = keys(layer, span.table[first_block + b], head);
            where[blocks + b] = values(layer, span.table[first_block + b], head);
        }
        attend_any(tile, where.data(), where.data() + blocks, heads_, rule.softcap);
        for (int r = 0; r < tile.rows; r++) {
            int token = (first + r) / shared, of_head = head * shared + (first + r) % shared;
            std::copy_n(tile.outs[r], heads_.width, out + size_t(span.row + token) * out_stride + of_head * heads_.width);
        }
    });
}

template class Blocks<float>;
template class Blocks<Half>;

}  // namespace windlass
