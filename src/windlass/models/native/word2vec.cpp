// Skip-gram with negative sampling (Mikolov et al. 2013, arXiv:1310.4546) over blocks of tokens.
//
//     draw    a block of tokens -> groups: a token, its co-occurrences, its negatives; a pure function
//     learn   groups -> both matrices moved once for each group
//
// A group is one product of small matrices: the vectors of C co-occurring tokens with those of the token and
// its K negatives, which the C share (Ji et al. 2016, arXiv:1604.04661). All of a group reads the vectors as
// they were before it, so tokens that are twice in it count twice, and numpy can say the same.
//
// Threads take blocks from one counter and move the same matrices without locks (Niu et al. 2011, Hogwild,
// arXiv:1106.5730). With one thread the result is a function of the arguments alone.
//
// Random numbers are splitmix64, looked up by position: number j of position p does not depend on who draws it.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "lanes.h"

using namespace windlass;

namespace {

constexpr int kTile = 6;       // outputs whose sums stay in registers
constexpr int kStride = 64;    // random numbers of one position
constexpr int kLossEvery = 8;  // groups between two whose loss is taken
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

inline uint64_t number(uint64_t key, uint64_t position, int j) {
    uint64_t z = key + (position * kStride + static_cast<uint64_t>(j) + 1) * kGolden;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

inline uint32_t low(uint64_t z) { return static_cast<uint32_t>(z); }
inline uint32_t scaled(uint64_t z, uint32_t range) { return static_cast<uint32_t>(((z >> 32) * range) >> 32); }

}  // namespace

extern "C" {

// What is drawn from: tables by token, of `vocabulary` entries.
struct WindlassWord2vecTables {
    const uint32_t* keep;       // a token stays where a number is at most this
    const uint32_t* threshold;  // alias method (Walker 1977): entry i stands for itself below this,
    const int32_t* alias;       // and for this token otherwise
    int32_t vocabulary, end_token, distance, negatives;
};

// The matrices, (vocabulary, stride), stride a multiple of 8 whose last columns are zero.
struct WindlassWord2vecVectors {
    float* inputs;
    float* outputs;
    int32_t stride;
};

struct WindlassWord2vecSums {
    double loss;
    int64_t loss_pairs, pairs, groups;
};

}  // extern "C"

namespace {

struct Groups {
    std::vector<int32_t> targets;   // negatives + 1 a group; -1 where a negative is the token itself
    std::vector<int32_t> starts{0};
    std::vector<int32_t> contexts;

    void clear() {
        targets.clear();
        contexts.clear();
        starts.assign(1, 0);
    }
};

struct Kept {
    int32_t token, document;
    uint64_t position;
    int32_t reach;
};

void keep_tokens(const WindlassWord2vecTables& t, uint64_t key, const int32_t* tokens, int64_t count,
                 uint64_t first, std::vector<Kept>& kept) {
    kept.clear();
    int32_t document = 0;
    for (int64_t i = 0; i < count; ++i) {
        uint64_t z = number(key, first + i, 0);
        if (low(z) <= t.keep[tokens[i]])
            kept.push_back({tokens[i], document, first + i, 1 + static_cast<int32_t>(scaled(z, t.distance))});
        document += tokens[i] == t.end_token;
    }
}

void draw_groups(const WindlassWord2vecTables& t, uint64_t key, const std::vector<Kept>& kept, Groups& out) {
    out.clear();
    int64_t count = static_cast<int64_t>(kept.size());
    for (int64_t i = 0; i < count; ++i) {
        const Kept& own = kept[i];
        size_t before = out.contexts.size();
        for (int64_t j = std::max<int64_t>(0, i - own.reach); j <= std::min(count - 1, i + own.reach); ++j)
            if (j != i && kept[j].document == own.document) out.contexts.push_back(kept[j].token);
        if (out.contexts.size() == before) continue;
        out.starts.push_back(static_cast<int32_t>(out.contexts.size()));
        out.targets.push_back(own.token);
        for (int k = 1; k <= t.negatives; ++k) {
            uint64_t z = number(key, own.position, k);
            uint32_t entry = scaled(z, t.vocabulary);
            int32_t token = low(z) < t.threshold[entry] ? static_cast<int32_t>(entry) : t.alias[entry];
            out.targets.push_back(token == own.token ? -1 : token);
        }
    }
}

// Room for the vectors of a group as they were before it, and for its products.
struct Bench {
    std::vector<float> inputs, outputs, slopes;
    std::vector<int32_t> targets;
};

template <int N>
void multiply(const Bench& b, int contexts, int at, int stride, float* scores, int width) {
    const float* outputs = b.outputs.data() + at * stride;
    int c = 0;
    for (; c + 2 <= contexts; c += 2)
        dots<2, N>(b.inputs.data() + c * stride, stride, outputs, stride, stride, scores + c * width + at, width);
    if (c < contexts)
        dots<1, N>(b.inputs.data() + c * stride, stride, outputs, stride, stride, scores + c * width + at, width);
}

// Adds to the vectors of N outputs and of all inputs of a group what the slopes say.
template <int N>
void move(const Bench& b, int contexts, int at, int width, const int32_t* context, const WindlassWord2vecVectors& v) {
    int stride = v.stride;
    const float* old = b.outputs.data() + at * stride;
    for (int d = 0; d < stride; d += kLanes) {
        Lanes o[N], more[N];
        for (int n = 0; n < N; ++n) o[n] = load(old + n * stride + d), more[n] = all(0.0f);
        for (int c = 0; c < contexts; ++c) {
            const float* slope = b.slopes.data() + c * width + at;
            Lanes h = load(b.inputs.data() + c * stride + d), step = all(0.0f);
            for (int n = 0; n < N; ++n) {
                Lanes s = all(slope[n]);
                step = fma(s, o[n], step);
                more[n] = fma(s, h, more[n]);
            }
            float* to = v.inputs + static_cast<int64_t>(context[c]) * stride + d;
            store(to, load(to) + step);
        }
        for (int n = 0; n < N; ++n) {
            float* to = v.outputs + static_cast<int64_t>(b.targets[at + n]) * stride + d;
            store(to, load(to) + more[n]);
        }
    }
}

// Calls f<N> for a tile of N outputs.
#define WINDLASS_TILE(f, n, ...)        \
    switch (n) {                        \
        case 1: f<1>(__VA_ARGS__); break; \
        case 2: f<2>(__VA_ARGS__); break; \
        case 3: f<3>(__VA_ARGS__); break; \
        case 4: f<4>(__VA_ARGS__); break; \
        case 5: f<5>(__VA_ARGS__); break; \
        default: f<6>(__VA_ARGS__); break; \
    }

void gather(Bench& b, const int32_t* context, int contexts, const int32_t* targets, int width,
            const WindlassWord2vecVectors& v) {
    b.targets.clear();
    for (int n = 0; n < width; ++n)
        if (targets[n] >= 0) b.targets.push_back(targets[n]);
    size_t row = v.stride, bytes = row * sizeof(float);
    b.inputs.resize(std::max(b.inputs.size(), contexts * row));
    b.outputs.resize(std::max(b.outputs.size(), b.targets.size() * row));
    b.slopes.resize(std::max(b.slopes.size(), contexts * b.targets.size() + kLanes));
    for (int c = 0; c < contexts; ++c)
        std::memcpy(b.inputs.data() + c * row, v.inputs + context[c] * row, bytes);
    for (size_t n = 0; n < b.targets.size(); ++n)
        std::memcpy(b.outputs.data() + n * row, v.outputs + b.targets[n] * row, bytes);
}

// Table of the logistic function: exact to 2e-6 by linear interpolation on [-16, 16].
struct Logistic {
    static constexpr int kSteps = 4096;
    static constexpr float kReach = 16.0f;
    float values[kSteps + 2];
    Logistic() {
        for (int i = 0; i < kSteps + 2; ++i)
            values[i] = static_cast<float>(1.0 / (1.0 + std::exp(kReach - 2.0 * kReach * i / kSteps)));
    }
    float operator()(float x) const {
        // In this order what is not a number becomes one, and stays inside of the table.
        float at = (std::min(std::max(-kReach, x), kReach) + kReach) * (kSteps / (2 * kReach));
        int i = static_cast<int>(at);
        return values[i] + (at - i) * (values[i + 1] - values[i]);
    }
};
const Logistic logistic;

double loss_of(const float* scores, int contexts, int width) {
    double total = 0;
    for (int c = 0; c < contexts; ++c)
        for (int n = 0; n < width; ++n) {
            double x = n ? -scores[c * width + n] : scores[c * width + n];
            total += x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x;
        }
    return total;
}

void learn_group(Bench& b, const int32_t* context, int contexts, const int32_t* targets, int width, float rate,
                 const WindlassWord2vecVectors& v, bool measures, WindlassWord2vecSums& sums) {
    gather(b, context, contexts, targets, width, v);
    int outputs = static_cast<int>(b.targets.size());
    float* slopes = b.slopes.data();
    for (int at = 0; at < outputs; at += kTile)
        WINDLASS_TILE(multiply, std::min(kTile, outputs - at), b, contexts, at, v.stride, slopes, outputs);
    if (measures) {
        sums.loss += loss_of(slopes, contexts, outputs);
        sums.loss_pairs += contexts;
    }
    for (int c = 0; c < contexts; ++c)
        for (int n = 0; n < outputs; ++n) {
            float& s = slopes[c * outputs + n];
            s = rate * ((n ? 0.0f : 1.0f) - logistic(s));
        }
    for (int at = 0; at < outputs; at += kTile)
        WINDLASS_TILE(move, std::min(kTile, outputs - at), b, contexts, at, outputs, context, v);
    sums.pairs += contexts;
    ++sums.groups;
}

void prefetch(const int32_t* rows, int count, const float* matrix, int stride) {
    for (int n = 0; n < count; ++n)
        for (int d = 0; d < stride && rows[n] >= 0; d += 16)
            __builtin_prefetch(matrix + static_cast<int64_t>(rows[n]) * stride + d);
}

void learn_groups(Bench& b, const int32_t* targets, const int32_t* starts, const int32_t* contexts, int64_t groups,
                  int width, float rate, const WindlassWord2vecVectors& v, WindlassWord2vecSums& sums) {
    for (int64_t g = 0; g < groups; ++g) {
        if (g + 1 < groups) prefetch(targets + (g + 1) * width, width, v.outputs, v.stride);
        learn_group(b, contexts + starts[g], starts[g + 1] - starts[g], targets + g * width, width, rate, v,
                    g % kLossEvery == 0, sums);
    }
}

}  // namespace

extern "C" {

// Draw a block. Returns the number of groups; `contexts` has room for 2 * distance * count, the others for
// count + 1 and count * (negatives + 1).
int64_t windlass_word2vec_draw(const WindlassWord2vecTables* tables, uint64_t key, const int32_t* tokens,
                               int64_t count, uint64_t first, int32_t* targets, int32_t* starts,
                               int32_t* contexts) {
    std::vector<Kept> kept;
    Groups groups;
    keep_tokens(*tables, key, tokens, count, first, kept);
    draw_groups(*tables, key, kept, groups);
    std::copy(groups.targets.begin(), groups.targets.end(), targets);
    std::copy(groups.starts.begin(), groups.starts.end(), starts);
    std::copy(groups.contexts.begin(), groups.contexts.end(), contexts);
    return static_cast<int64_t>(groups.starts.size()) - 1;
}

void windlass_word2vec_learn(const WindlassWord2vecVectors* vectors, const int32_t* targets, const int32_t* starts,
                             const int32_t* contexts, int64_t groups, int32_t width, float rate,
                             WindlassWord2vecSums* sums) {
    Bench bench;
    learn_groups(bench, targets, starts, contexts, groups, width, rate, *vectors, *sums);
}

// Draw and learn blocks of `block` tokens each, with one rate for each block.
void windlass_word2vec_run(const WindlassWord2vecTables* tables, const WindlassWord2vecVectors* vectors, uint64_t key,
                           const int32_t* tokens, int64_t count, uint64_t first, int64_t block, const float* rates,
                           int32_t threads, WindlassWord2vecSums* sums) {
    int64_t blocks = (count + block - 1) / block;
    std::atomic<int64_t> next{0};
    std::vector<WindlassWord2vecSums> parts(threads, WindlassWord2vecSums{});
    auto work = [&](int which) {
        std::vector<Kept> kept;
        Groups groups;
        Bench bench;
        for (int64_t n = next++; n < blocks; n = next++) {
            int64_t from = n * block;
            keep_tokens(*tables, key, tokens + from, std::min(block, count - from), first + from, kept);
            draw_groups(*tables, key, kept, groups);
            learn_groups(bench, groups.targets.data(), groups.starts.data(), groups.contexts.data(),
                         static_cast<int64_t>(groups.starts.size()) - 1, tables->negatives + 1, rates[n], *vectors,
                         parts[which]);
        }
    };
    std::vector<std::thread> team;
    for (int t = 1; t < threads; ++t) team.emplace_back(work, t);
    work(0);
    for (std::thread& one : team) one.join();
    for (const WindlassWord2vecSums& part : parts) {
        sums->loss += part.loss;
        sums->loss_pairs += part.loss_pairs;
        sums->pairs += part.pairs;
        sums->groups += part.groups;
    }
}

}  // extern "C"
