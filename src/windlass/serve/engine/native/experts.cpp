// The feed-forward part of a layer with experts: a router sends each row to a few of them.
//
// The rows of an expert are gathered, so that its matrices are read once a step. A row's own result is
// independent of which rows are gathered with it: products treat rows alike, and what its experts return is
// added up in the order of their numbers.
#include <algorithm>
#include <cmath>

#include "model.h"

namespace windlass {

void KeptRows::reserve(int count, int width) {
    stride = rounded_up(width, 16);
    level_stride = rounded_up(width, 128);  // groups are at most 128 wide
    floats_ = Piece<float>(size_t(count) * stride);
    bytes_ = Piece<uint8_t>(size_t(count) * level_stride);
    row_scales_.resize(count);
    values = floats_.data(), levels = bytes_.data(), scales = row_scales_.data();
}

Rows rows_from(const Rows& rows, int first) {
    return Rows{rows.values + size_t(first) * rows.stride, rows.stride, rows.levels + size_t(first) * rows.level_stride,
                rows.level_stride, rows.scales + first};
}

void Model::reserve_experts() {
    int slots = capacity_ * config.experts_per_token;
    gathered_.reserve(slots, config.width);
    expert_up_.reserve(slots, (config.is_gated ? 2 : 1) * config.expert_width);
    expert_inner_.reserve(slots, config.expert_width);
    routes_.reserve(capacity_, config.experts);
    shared_gates_.resize(capacity_);
    choices_.resize(slots);
    first_.resize(config.experts + 1);
}

void Model::run_experts(Team& team, const Layer& layer, int rows) {
    const int each = config.experts_per_token, slots = rows * each;
    multiply(team, *layer.router, normed_, rows, routes_.values, routes_.stride, layer.router_bias, Then::kStore);
    team.each(rows, [&](int row) { choose(row); });
    team.each(1, [&](int) { order(slots); });
    team.each(slots, [&](int i) {
        int to = choices_[i].slot;
        std::copy_n(normed_.values + size_t(i / each) * normed_.stride, config.width,
                    gathered_.values + size_t(to) * gathered_.stride);
        prepare(gathered_, to, config.width, layer.experts[0].up->is_integer());
    });
    for (int e = 0; e < config.experts; e++) {
        const FeedForward& expert = layer.experts[e];
        int first = first_[e], count = first_[e + 1] - first;
        if (count)
            multiply(team, *expert.up, rows_from(gathered_, first), count, rows_from(expert_up_, first).values,
                     expert_up_.stride, expert.up_bias, Then::kStore);
    }
    team.each(slots, [&](int slot) {
        activate(Activation(config.activation), expert_up_.values + size_t(slot) * expert_up_.stride, config.is_gated,
                 config.expert_width, expert_inner_.values + size_t(slot) * expert_inner_.stride);
        prepare(expert_inner_, slot, config.expert_width, layer.experts[0].down->is_integer());
    });
    // What was gathered is not needed any more: the results take its place.
    for (int e = 0; e < config.experts; e++) {
        const FeedForward& expert = layer.experts[e];
        int first = first_[e], count = first_[e + 1] - first;
        if (count)
            multiply(team, *expert.down, rows_from(expert_inner_, first), count, rows_from(gathered_, first).values,
                     gathered_.stride, expert.down_bias, Then::kStore);
    }
    if (layer.shared.up) run_shared(team, layer, rows);
    team.each(rows, [&](int row) { collect(layer, row); });
}

// Let each token pass the part that all tokens pass; the result is in y_.
void Model::run_shared(Team& team, const Layer& layer, int rows) {
    const FeedForward& shared = layer.shared;
    multiply(team, *shared.up, normed_, rows, up_, up_stride(), shared.up_bias, Then::kStore);
    bool integers = shared.down->is_integer();
    team.each(rows, [&](int row) { feed(row, config.shared_width, integers); });
    multiply(team, *shared.down, inner_, rows, y_, x_stride_, shared.down_bias, Then::kStore);
    if (layer.shared_gate)
        multiply(team, *layer.shared_gate, normed_, rows, shared_gates_.data(), 1, nullptr, Then::kStore);
}

// Choose the experts of a row, those with the highest probability; of equals the first.
void Model::choose(int row) {
    float* route = routes_.values + size_t(row) * routes_.stride;
    soften(route, config.experts);
    Choice* chosen = choices_.data() + size_t(row) * config.experts_per_token;
    float total = 0.0f;
    for (int i = 0; i < config.experts_per_token; i++) {
        int best = -1;
        for (int e = 0; e < config.experts; e++) {
            bool is_taken = std::any_of(chosen, chosen + i, [&](const Choice& other) { return other.expert == e; });
            if (!is_taken && (best < 0 || route[e] > route[best])) best = e;
        }
        chosen[i] = Choice{best, 0, route[best]};
        total += route[best];
    }
    if (config.normalises_experts)
        for (int i = 0; i < config.experts_per_token; i++) chosen[i].weight /= total;
    std::sort(chosen, chosen + config.experts_per_token,
              [](const Choice& a, const Choice& b) { return a.expert < b.expert; });
}

// Give every choice a slot; the slots of an expert lie together.
void Model::order(int slots) {
    std::fill(first_.begin(), first_.end(), 0);
    for (int i = 0; i < slots; i++) first_[choices_[i].expert + 1]++;
    for (int e = 0; e < config.experts; e++) first_[e + 1] += first_[e];
    std::vector<int> next(first_.begin(), first_.end() - 1);
    for (int i = 0; i < slots; i++) choices_[i].slot = next[choices_[i].expert]++;
}

// Add up what the experts of a row returned, and the shared part.
void Model::collect(const Layer& layer, int row) {
    float* y = y_ + size_t(row) * x_stride_;
    if (!layer.shared.up) std::fill_n(y, config.width, 0.0f);
    if (layer.shared.up && layer.shared_gate)
        multiply_by(y, config.width, 1.0f / (1.0f + std::exp(-shared_gates_[row])));
    for (int i = 0; i < config.experts_per_token; i++) {
        const Choice& choice = choices_[size_t(row) * config.experts_per_token + i];
        const float* from = gathered_.values + size_t(choice.slot) * gathered_.stride;
        for (int c = 0; c < config.width; c++) y[c] += from[c] * choice.weight;
    }
}

}  // namespace windlass
