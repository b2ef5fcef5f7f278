#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace windlass {
namespace {

constexpr int kMostRank = 256;

// Rows that lie a multiple of 4096 bytes apart would fight for the same lines of the first cache.
int stride_of(int width) {
    int stride = rounded_up(width, 16);
    return stride % 1024 ? stride : stride + 16;
}

std::variant<Blocks<float>, Blocks<Half>> make_blocks(const Config& config, const Heads& heads) {
    if (config.half_keys) return Blocks<Half>(heads, config.layers, config.blocks);
    return Blocks<float>(heads, config.layers, config.blocks);
}

}  // namespace

Model::Model(const Config& config, const float* cosines, const float* sines)
    : config(config),
      layers(config.layers),
      heads_{config.heads, config.kv_heads, config.head_width},
      blocks_(make_blocks(config, heads_)) {
    if (config.family == int(Family::kLlama)) {
        size_t angles = size_t(config.context) * (config.head_width / 2);
        cosines_.assign(cosines, cosines + angles);
        sines_.assign(sines, sines + angles);
    }
}

void Model::reserve(int rows) {
    if (rows <= capacity_) return;
    capacity_ = std::max(rows, 2 * capacity_);
    int strides[] = {stride_of(config.width), stride_of(config.width), stride_of(mix_width()),
                     stride_of(attention_width()), stride_of(up_width()), stride_of(config.ffn_width),
                     stride_of(kMostRank)};
    size_t floats = 0;
    for (int stride : strides) floats += size_t(stride) * capacity_;
    kept_ = Piece<float>(floats);
    float* at = kept_.data();
    auto take = [&](int which) {
        float* found = at;
        at += size_t(strides[which]) * capacity_;
        return found;
    };
    // Levels are padded to whole groups, which are at most 128 wide.
    auto level_stride = [](int width) { return rounded_up(width, 128); };
    kept_levels_ = Piece<uint8_t>(size_t(level_stride(config.width) + level_stride(attention_width()) +
                                         level_stride(config.ffn_width)) * capacity_);
    scales_.resize(3 * size_t(capacity_));
    uint8_t* levels = kept_levels_.data();
    x_ = take(0);
    normed_ = Rows{take(1), strides[1], levels, level_stride(config.width), scales_.data()};
    mix_ = take(2);
    levels += size_t(normed_.level_stride) * capacity_;
    mixed_ = Rows{take(3), strides[3], levels, level_stride(attention_width()), scales_.data() + capacity_};
    up_ = take(4);
    levels += size_t(mixed_.level_stride) * capacity_;
    inner_ = Rows{take(5), strides[5], levels, level_stride(config.ffn_width), scales_.data() + 2 * capacity_};
    low_rank_ = take(6);
}

void Model::run(Team& team, const Batch& batch) {
    reserve(std::max(batch.rows, batch.outs));
    spans_.clear();
    adapter_of_span_.clear();
    std::vector<int> span_of_row(batch.rows);
    for (int s = 0; s < batch.spans; s++) {
        const int32_t* field = batch.span_fields + 5 * s;
        spans_.push_back(Span{field[0], field[1], field[2], batch.tables + field[3]});
        adapter_of_span_.push_back(field[4]);
        for (int i = 0; i < field[1]; i++) span_of_row[field[0] + i] = s;
    }
    const int x_stride = stride_of(config.width), mix_stride = stride_of(mix_width());
    const int rows = batch.rows;
    team.run([&] {
        team.each(rows, [&](int row) { embed(batch, spans_[span_of_row[row]], row); });
        for (int l = 0; l < config.layers; l++) {
            const Layer& layer = layers[l];
            auto norm = [&](int which, Place next) {
                bool integers = layer.matrices[next]->is_integer();
                team.each(rows, [&](int row) {
                    normalise(x_ + size_t(row) * x_stride, normed_.values + size_t(row) * normed_.stride,
                              layer.norm_weights[which], layer.norm_biases[which]);
                    prepare(normed_, row, config.width, integers);
                });
            };
            norm(0, kMix);
            apply(team, l, kMix, normed_, rows, mix_, mix_stride, Then::kStore);
            team.each(rows, [&](int row) { turn_and_keep(l, spans_[span_of_row[row]], row); });
            std::visit([&](auto& blocks) {
                blocks.attend(team, l, spans_, mix_, mix_stride, mixed_.values, mixed_.stride);
            }, blocks_);
            if (layer.matrices[kOut]->is_integer())
                team.each(rows, [&](int row) { prepare(mixed_, row, attention_width(), true); });
            apply(team, l, kOut, mixed_, rows, x_, x_stride, Then::kAdd);
            norm(1, kUp);
            apply(team, l, kUp, normed_, rows, up_, stride_of(up_width()), Then::kStore);
            bool integers = layer.matrices[kDown]->is_integer();
            team.each(rows, [&](int row) { feed(row, integers); });
            apply(team, l, kDown, inner_, rows, x_, x_stride, Then::kAdd);
        }
        if (batch.hidden)
            team.each(rows, [&](int row) {
                normalise(x_ + size_t(row) * x_stride, batch.hidden + size_t(row) * config.width, norm_weight, norm_bias);
            });
        if (!batch.outs) return;
        team.each(batch.outs, [&](int i) {
            normalise(x_ + size_t(batch.out_rows[i]) * x_stride, normed_.values + size_t(i) * normed_.stride,
                      norm_weight, norm_bias);
            prepare(normed_, i, config.width, head->is_integer());
        });
        multiply(team, *head, normed_, batch.outs, batch.logits, config.vocabulary, nullptr, Then::kStore);
    });
}

void Model::embed(const Batch& batch, const Span& span, int row) {
    float* to = x_ + size_t(row) * stride_of(config.width);
    int token = batch.tokens[row];
    if (table) {
        std::copy_n(table + size_t(token) * config.width, config.width, to);
    } else if (table_halves) {
        for (int i = 0; i < config.width; i++) {
            uint32_t bits = uint32_t(table_halves[size_t(token) * config.width + i]) << 16;
            std::memcpy(&to[i], &bits, 4);
        }
    } else {
        head->row(token, to);
    }
    if (positions) {
        const float* place = positions + size_t(span.position + row - span.row) * config.width;
        for (int i = 0; i < config.width; i++) to[i] += place[i];
    }
}

// RMSNorm, or LayerNorm where there is a bias.
void Model::normalise(const float* from, float* to, const float* weight, const float* bias) const {
    int width = config.width, whole = width / kLanes * kLanes;
    float mean = 0.0f;
    if (bias) {
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
    float scale = 1.0f / std::sqrt(square / float(width) + config.epsilon);
    for (int i = 0; i < width; i++) {
        float value = (from[i] - mean) * scale * weight[i];
        to[i] = bias ? value + bias[i] : value;
    }
}

void Model::prepare(Rows& rows, int row, int width, bool integers) const {
    if (integers)
        quantise(rows.values + size_t(row) * rows.stride, width, rows.levels + size_t(row) * rows.level_stride,
                 rows.level_stride, rows.scales + row);
}

// Turn queries and keys by their position (llama), scale the queries, keep keys and values.
void Model::turn_and_keep(int layer, const Span& span, int row) {
    float* queries = mix_ + size_t(row) * stride_of(mix_width());
    float *keys = queries + attention_width(), *values = keys + config.kv_heads * config.head_width;
    int position = span.position + row - span.row, pairs = config.head_width / 2;
    if (config.family == int(Family::kLlama)) {
        const float *cosine = cosines_.data() + size_t(position) * pairs, *sine = sines_.data() + size_t(position) * pairs;
        for (int head = 0; head < config.heads + config.kv_heads; head++) {
            float *a = queries + head * config.head_width, *b = a + pairs;
            for (int i = 0; i < pairs; i++) {
                float left = a[i], right = b[i];
                a[i] = left * cosine[i] - right * sine[i];
                b[i] = right * cosine[i] + left * sine[i];
            }
        }
    }
    float scale = 1.0f / std::sqrt(float(config.head_width));
    for (int i = 0; i < attention_width(); i++) queries[i] *= scale;
    int block = span.table[position / kBlockTokens];
    std::visit([&](auto& blocks) { blocks.put(layer, block, position % kBlockTokens, keys, values); }, blocks_);
}

void Model::apply(Team& team, int layer, Place place, const Rows& in, int rows, float* out, int stride, Then then) {
    multiply(team, *layers[layer].matrices[place], in, rows, out, stride, layers[layer].biases[place], then);
    for (size_t s = 0; s < spans_.size(); s++) {
        if (adapter_of_span_[s] < 0) continue;
        const Span& span = spans_[s];
        Rows part{in.values + size_t(span.row) * in.stride, in.stride, nullptr, 0, nullptr};
        Rows low{low_rank_, stride_of(kMostRank), nullptr, 0, nullptr};
        for (const Delta& delta : adapters[adapter_of_span_[s]]->deltas[layer * kPlaces + place]) {
            multiply(team, *delta.a, part, span.rows, low_rank_, low.stride, nullptr, Then::kStore);
            multiply(team, *delta.b, low, span.rows, out + size_t(span.row) * stride + delta.column, stride, nullptr,
                     Then::kAdd);
        }
    }
}

// The inner features of a row: silu(gate) * up, or gelu(up).
void Model::feed(int row, bool integers) {
    const float* up = up_ + size_t(row) * stride_of(up_width());
    float* inner = inner_.values + size_t(row) * inner_.stride;
    int width = config.ffn_width;
    for (int i = 0; i < width; i += kLanes) {
        int some = std::min(kLanes, width - i);
        float gate[kLanes] = {}, value[kLanes] = {}, made[kLanes];
        if (config.family == int(Family::kLlama)) {
            std::memcpy(gate, up + i, some * sizeof(float));
            std::memcpy(value, up + width + i, some * sizeof(float));
            store(made, _mm256_mul_ps(silu(load(gate)), load(value)));
        } else {
            std::memcpy(value, up + i, some * sizeof(float));
            store(made, gelu(load(value)));
        }
        std::memcpy(inner + i, made, some * sizeof(float));
    }
    prepare(inner_, row, width, integers);
}

}  // namespace windlass
