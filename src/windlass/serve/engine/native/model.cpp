#include "model.h"

#include <algorithm>
#include <cstring>

namespace windlass {
namespace {

constexpr int kMostRank = 256;

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
    x_stride_ = stride_of(config.width);
    size_t angles = size_t(config.tables) * config.context * config.pairs;
    if (angles) {
        cosines_.assign(cosines, cosines + angles);
        sines_.assign(sines, sines + angles);
    }
}

void Model::reserve(int rows) {
    if (rows <= capacity_) return;
    capacity_ = std::max(rows, 2 * capacity_);
    int strides[] = {stride_of(config.width), stride_of(config.width), stride_of(mix_width()),
                     stride_of(attention_width()), up_stride(), stride_of(inner_width()),
                     stride_of(kMostRank), stride_of(config.width)};
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
                                         level_stride(inner_width())) * capacity_);
    scales_.resize(3 * size_t(capacity_));
    uint8_t* levels = kept_levels_.data();
    x_ = take(0);
    normed_ = Rows{take(1), strides[1], levels, level_stride(config.width), scales_.data()};
    mix_ = take(2);
    levels += size_t(normed_.level_stride) * capacity_;
    mixed_ = Rows{take(3), strides[3], levels, level_stride(attention_width()), scales_.data() + capacity_};
    up_ = take(4);
    levels += size_t(mixed_.level_stride) * capacity_;
    inner_ = Rows{take(5), strides[5], levels, level_stride(inner_width()), scales_.data() + 2 * capacity_};
    low_rank_ = take(6);
    y_ = take(7);
    if (config.experts) reserve_experts();
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
    const int rows = batch.rows, mix_stride = stride_of(mix_width());
    team.run([&] {
        team.each(rows, [&](int row) { embed(batch, spans_[span_of_row[row]], row); });
        for (int l = 0; l < config.layers; l++) {
            const Layer& layer = layers[l];
            const bool direct = adds_directly(layer);
            float* out = direct ? x_ : y_;
            auto read_by = [&](Which norm, const Matrix* matrix) {
                bool integers = matrix && matrix->is_integer();
                team.each(rows, [&](int row) { read(row, layer.norms[norm], integers); });
            };
            read_by(kAttentionNorm, layer.matrices[kMix]);
            apply(team, l, kMix, normed_, rows, mix_, mix_stride, Then::kStore);
            team.each(rows, [&](int row) { turn_and_keep(l, spans_[span_of_row[row]], row); });
            std::visit([&](auto& blocks) {
                blocks.attend(team, l, spans_, layer.rule, mix_, mix_stride, mixed_.values, mixed_.stride);
            }, blocks_);
            if (layer.matrices[kOut]->is_integer())
                team.each(rows, [&](int row) { prepare(mixed_, row, attention_width(), true); });
            apply(team, l, kOut, mixed_, rows, out, x_stride_, direct ? Then::kAdd : Then::kStore);
            if (!direct && !config.is_parallel)
                team.each(rows, [&](int row) { add(row, layer.norms[kAttentionPostNorm]); });

            // Parallel parts read the same input, which two norms may see differently.
            const Matrix* next = layer.experts.empty() ? layer.matrices[kUp] : layer.shared.up;
            if (!config.is_parallel || layer.norms[kFfnNorm]) read_by(kFfnNorm, next);
            if (layer.experts.empty()) {
                apply(team, l, kUp, normed_, rows, up_, up_stride(), Then::kStore);
                bool integers = layer.matrices[kDown]->is_integer();
                team.each(rows, [&](int row) { feed(row, config.ffn_width, integers); });
                apply(team, l, kDown, inner_, rows, out, x_stride_, direct || config.is_parallel ? Then::kAdd : Then::kStore);
            } else {
                run_experts(team, layer, rows);
            }
            if (!direct || !layer.experts.empty()) team.each(rows, [&](int row) { add(row, layer.norms[kFfnPostNorm]); });
        }
        if (batch.hidden)
            team.each(rows, [&](int row) {
                normalise_row(stream(row), batch.hidden + size_t(row) * config.width, last_norm);
            });
        if (batch.outs) score(team, batch);
    });
}

// The logits of the rows in out_rows.
void Model::score(Team& team, const Batch& batch) {
    team.each(batch.outs, [&](int i) {
        float* normed = normed_.values + size_t(i) * normed_.stride;
        normalise_row(stream(batch.out_rows[i]), normed, last_norm);
        if (config.logit_scale != 1.0f) multiply_by(normed, config.width, config.logit_scale);
        prepare(normed_, i, config.width, head->is_integer());
    });
    multiply(team, *head, normed_, batch.outs, batch.logits, config.vocabulary, head_bias, Then::kStore);
    if (config.logit_softcap > 0.0f)
        team.each(batch.outs, [&](int i) {
            bound(batch.logits + size_t(i) * config.vocabulary, config.vocabulary, config.logit_softcap);
        });
}

void Model::embed(const Batch& batch, const Span& span, int row) {
    float* to = stream(row);
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
    if (config.embedding_scale != 1.0f) multiply_by(to, config.width, config.embedding_scale);
}

void Model::normalise_row(const float* from, float* to, const Norm& norm) const {
    normalise(from, to, config.width, norm, config.epsilon, config.subtracts_mean);
}

// Make the input of a part from the residual stream: normalised, if it has a norm there.
void Model::read(int row, const Norm& norm, bool integers) {
    float* to = normed_.values + size_t(row) * normed_.stride;
    if (norm)
        normalise_row(stream(row), to, norm);
    else
        std::copy_n(stream(row), config.width, to);
    prepare(normed_, row, config.width, integers);
}

// Add the output of a part to the residual stream: normalised, if it has a norm there, and scaled.
void Model::add(int row, const Norm& norm) {
    float *x = stream(row), *y = y_ + size_t(row) * x_stride_;
    if (norm) normalise_row(y, y, norm);
    if (config.residual_scale != 1.0f) multiply_by(y, config.width, config.residual_scale);
    for (int i = 0; i < config.width; i++) x[i] += y[i];
}

void Model::prepare(Rows& rows, int row, int width, bool integers) const {
    if (integers)
        quantise(rows.values + size_t(row) * rows.stride, width, rows.levels + size_t(row) * rows.level_stride,
                 rows.level_stride, rows.scales + row);
}

// Normalise queries and keys, turn them by their position, scale the queries, keep keys and values.
void Model::turn_and_keep(int layer, const Span& span, int row) {
    const Layer& of = layers[layer];
    float* queries = mix_ + size_t(row) * stride_of(mix_width());
    float *keys = queries + attention_width(), *values = keys + config.kv_heads * config.head_width;
    int position = span.position + row - span.row;
    if (of.norms[kQueryNorm]) {
        norm_heads(queries, config.heads, of.norms[kQueryNorm]);
        norm_heads(keys, config.kv_heads, of.norms[kKeyNorm]);
    }
    if (of.angles >= 0) {
        size_t at = (size_t(of.angles) * config.context + position) * config.pairs;
        for (int head = 0; head < config.heads + config.kv_heads; head++)
            turn(queries + head * config.head_width, config.pairs, cosines_.data() + at, sines_.data() + at);
    }
    multiply_by(queries, attention_width(), config.attention_scale);
    int block = span.table[position / kBlockTokens];
    std::visit([&](auto& blocks) { blocks.put(layer, block, position % kBlockTokens, keys, values); }, blocks_);
}

void Model::norm_heads(float* heads, int count, const Norm& norm) const {
    int parts = config.norms_heads ? count : 1, width = count * config.head_width / parts;
    for (int i = 0; i < parts; i++) {
        float* part = heads + i * width;
        normalise(part, part, width, norm, config.epsilon, config.subtracts_mean);
    }
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

// The inner features of a row.
void Model::feed(int row, int width, bool integers) {
    activate(Activation(config.activation), up_ + size_t(row) * up_stride(), config.is_gated, width,
             inner_.values + size_t(row) * inner_.stride);
    prepare(inner_, row, width, integers);
}

}  // namespace windlass
