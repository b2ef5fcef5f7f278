// From scores to tokens, one row after the other.
//
// The law is that of draw.py, which draw_numpy.py has in numpy: both give the same tokens. A token's weight
// is e^((score - best) / temperature), computed without fused operations; its mass is the weight in whole
// units of 2^-42. Sums of whole numbers do not depend on their order, so lanes and blocks are free here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lanes.h"
#include "team.h"

namespace windlass {
namespace {

constexpr int kBlock = 128;
constexpr double kUnit = 1024.0;  // the last bit of a double just above 1024 is worth 2^-42
constexpr double kWhole = 4398046511104.0;  // 2^42, the mass of the best token
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kSlack = 0.99999f;
constexpr double kFewTokens = 512.0;
constexpr float kLog2E = 1.44269504f;

struct Ask {
    int64_t number;  // 48 random bits
    int64_t mask;    // address of the bits of the tokens that may be chosen; 0 if all may
    int64_t least;   // the mass that min-p asks for
    double top_p;
    float coldness;  // log2(e) / temperature; 0 is greedy
    int32_t top_k;   // 0 is no limit
    int32_t wanted;  // alternatives to report; -1 reports nothing
    int32_t first_edit;
    int32_t edits;
};

struct Edit {
    double added;
    float repetition;
    int32_t token;
};

struct Best {
    float score = kLowest;
    int token = 0;
    bool is_numeric = true;
};

struct Scratch {
    std::vector<float> scores, weights, tops, found_weights, before;
    std::vector<int64_t> masses;
    std::vector<int32_t> found;

    void fit(int size) {
        int padded = rounded_up(size, kBlock), blocks = padded / kBlock;
        if (static_cast<int>(weights.size()) >= padded) return;
        scores.resize(padded);
        weights.resize(padded);
        found_weights.resize(padded);
        found.resize(padded);
        tops.resize(blocks);
        masses.resize(blocks);
    }
};

Lanes load_upto(const float* from, int left) {
    if (left >= kLanes) return load(from);
    Words places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    Words inside = _mm256_cmpgt_epi32(_mm256_set1_epi32(left), places);
    return _mm256_blendv_ps(all(kLowest), _mm256_maskload_ps(from, inside), _mm256_castsi256_ps(inside));
}

// The highest score and the first token that has it.
Best best_of(const float* scores, int size) {
    Best best;
    int at = 0;
    Lanes unordered = zero();
    for (int start = 0; start < size; start += kBlock) {
        int end = std::min(size, start + kBlock);
        Lanes top[4] = {all(kLowest), all(kLowest), all(kLowest), all(kLowest)};
        for (int i = start; i < end; i += 4 * kLanes)
            for (int j = 0; j < 4 && i + j * kLanes < end; j++) {
                Lanes score = load_upto(scores + i + j * kLanes, end - i - j * kLanes);
                unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(score, score, _CMP_UNORD_Q));
                top[j] = _mm256_max_ps(score, top[j]);
            }
        float highest = largest(_mm256_max_ps(_mm256_max_ps(top[0], top[1]), _mm256_max_ps(top[2], top[3])));
        if (highest > best.score) {
            best.score = highest;
            at = start;
        }
    }
    best.is_numeric = !_mm256_movemask_ps(unordered) && std::isfinite(best.score);
    if (best.is_numeric) best.token = static_cast<int>(std::find(scores + at, scores + size, best.score) - scores);
    return best;
}

// 2^x for -64 <= x <= 0 by products and sums alone, each rounded: numpy repeats it to the bit. The integer
// part goes to the exponent; for the rest, |f| <= 1/2, a polynomial of degree five errs by at most 2e-7.
Lanes weight_of(Lanes x) {
    constexpr float kPower[] = {9.67151299e-3f, 5.55073358e-2f, 2.40222424e-1f, 6.93147004e-1f, 1.0f};
    x = _mm256_max_ps(x, all(-64.0f));
    Lanes n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Lanes f = _mm256_sub_ps(x, n);
    Lanes p = all(1.32647261e-3f);
    for (float coefficient : kPower) p = _mm256_add_ps(_mm256_mul_ps(p, f), all(coefficient));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

int64_t mass_of(float weight) {
    double sum = weight + kUnit;
    int64_t bits, zero_bits;
    std::memcpy(&bits, &sum, sizeof bits);
    std::memcpy(&zero_bits, &kUnit, sizeof zero_bits);
    return bits - zero_bits;
}

Words mass_of(__m128 weights) {
    __m256d sums = _mm256_add_pd(_mm256_cvtps_pd(weights), _mm256_set1_pd(kUnit));
    return _mm256_sub_epi64(_mm256_castpd_si256(sums), _mm256_castpd_si256(_mm256_set1_pd(kUnit)));
}

// Fill weights, and for each block of them the highest and the mass; return the mass of all.
int64_t weigh(Scratch& to, const float* scores, int size, float best, float coldness) {
    int64_t total = 0;
    for (int start = 0, block = 0; start < size; start += kBlock, block++) {
        Lanes top = zero();
        Words mass = _mm256_setzero_si256();
        for (int i = start; i < std::min(size, start + kBlock); i += kLanes) {
            Lanes score = load_upto(scores + i, size - i);
            Lanes weight = weight_of(_mm256_mul_ps(_mm256_sub_ps(score, all(best)), all(coldness)));
            store(to.weights.data() + i, weight);
            top = _mm256_max_ps(top, weight);
            mass = _mm256_add_epi64(mass, mass_of(_mm256_castps256_ps128(weight)));
            mass = _mm256_add_epi64(mass, mass_of(_mm256_extractf128_ps(weight, 1)));
        }
        int64_t four[4];
        _mm256_storeu_si256(reinterpret_cast<Words*>(four), mass);
        to.tops[block] = largest(top);
        total += to.masses[block] = four[0] + four[1] + four[2] + four[3];
    }
    return total;
}

// A weight that at least `count` tokens reach: as many blocks have one that does.
float reached_by(const Scratch& at, int size, int count) {
    int blocks = rounded_up(size, kBlock) / kBlock;
    if (count > blocks) return 0.0f;
    std::vector<float> tops(at.tops.begin(), at.tops.begin() + blocks);
    std::nth_element(tops.begin(), tops.begin() + count - 1, tops.end(), std::greater<float>());
    return tops[count - 1];
}

// List the tokens, in order, whose weight is at least `floor`.
int gather(Scratch& at, int size, float floor) {
    int count = 0;
    for (int start = 0, block = 0; start < size; start += kBlock, block++) {
        if (at.tops[block] < floor) continue;
        for (int i = start; i < std::min(size, start + kBlock); i += kLanes) {
            Lanes reaches = _mm256_cmp_ps(load(at.weights.data() + i), all(floor), _CMP_GE_OQ);
            for (unsigned bits = _mm256_movemask_ps(reaches); bits; bits &= bits - 1) {
                int token = i + __builtin_ctz(bits);
                if (token >= size) break;
                at.found[count] = token;
                at.found_weights[count++] = at.weights[token];
            }
        }
    }
    return count;
}

// The largest t for which the tokens with a weight of at least t measure `goal` together; 0 if none do.
// Weights are positive, so their bits are ordered as they are: ten bits are settled at a time.
template <class Measure>
float limit(const float* weights, int count, int64_t goal, const Measure& measure) {
    uint32_t settled = 0;
    for (int shift = 20; shift >= 0; shift -= 10) {
        int64_t sums[1024] = {};
        for (int i = 0; i < count; i++) {
            uint32_t bits;
            std::memcpy(&bits, weights + i, sizeof bits);
            bits >>= shift;
            if (bits >> 10 == settled) sums[bits & 1023] += measure(weights[i]);
        }
        int bucket = 1023;
        while (bucket >= 0 && sums[bucket] < goal) goal -= sums[bucket--];
        if (bucket < 0) return 0.0f;
        settled = settled << 10 | static_cast<uint32_t>(bucket);
    }
    float found;
    std::memcpy(&found, &settled, sizeof found);
    return found;
}

int64_t mass_from(const float* weights, int count, float floor) {
    int64_t mass = 0;
    for (int i = 0; i < count; i++) mass += weights[i] >= floor ? mass_of(weights[i]) : 0;
    return mass;
}

int64_t part_of(int64_t total, int64_t number) {
    return static_cast<int64_t>(static_cast<unsigned __int128>(total) * static_cast<uint64_t>(number) >> 48);
}

int draw_of_all(const Scratch& at, int64_t target) {
    int block = 0;
    while (target >= at.masses[block]) target -= at.masses[block++];
    int token = block * kBlock;
    for (; target >= mass_of(at.weights[token]); token++) target -= mass_of(at.weights[token]);
    return token;
}

// List the tokens that top-p may keep. Those under (1 - p) / V of the mass cannot make up 1 - p of it together,
// so the rest reaches p; mostly far fewer do, which is tried first.
int gather_nucleus(Scratch& at, double top_p, int size, int64_t total) {
    double rest = (1.0 - top_p) * static_cast<double>(total) / kWhole;
    int count = gather(at, size, static_cast<float>(rest / kFewTokens) * kSlack);
    int64_t mass = mass_from(at.found_weights.data(), count, 0.0f);
    if (static_cast<double>(mass) >= top_p * static_cast<double>(total)) return count;
    return gather(at, size, static_cast<float>(rest / size) * kSlack);
}

// List the tokens that the limits may keep, and perhaps others.
int gather_some(Scratch& at, const Ask& ask, int size, int64_t total) {
    if (ask.top_k) return gather(at, size, reached_by(at, size, ask.top_k) * kSlack);
    if (ask.top_p < 1.0) return gather_nucleus(at, ask.top_p, size, total);
    return gather(at, size, static_cast<float>((ask.least - 1) / kWhole) * kSlack);
}

int draw_of_some(Scratch& at, const Ask& ask, int size, int64_t total) {
    int count = gather_some(at, ask, size, total);
    float* weights = at.found_weights.data();
    float floor = 0.0f;
    if (ask.top_k) floor = limit(weights, count, ask.top_k, [](float) { return int64_t{1}; });
    if (ask.top_p < 1.0) {
        int64_t all_mass = ask.top_k ? mass_from(weights, count, floor) : total;
        int64_t goal = std::max(int64_t{1}, static_cast<int64_t>(ask.top_p * static_cast<double>(all_mass)));
        floor = std::max(floor, limit(weights, count, goal, [](float w) { return mass_of(w); }));
    }
    int kept = 0;
    int64_t mass_kept = 0;
    for (int i = 0; i < count; i++) {  // without branches, which nobody could predict
        int64_t mass = mass_of(weights[i]);
        bool stays = (weights[i] >= floor) & (mass >= ask.least);
        at.found[kept] = at.found[i];
        weights[kept] = weights[i];
        kept += stays;
        mass_kept += stays ? mass : 0;
    }
    int64_t target = part_of(mass_kept, ask.number);
    int i = 0;
    while (target >= mass_of(weights[i])) target -= mass_of(weights[i++]);
    return at.found[i];
}

const float* masked(Scratch& to, const float* scores, int size, const uint8_t* mask) {
    const Words bit_of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    for (int i = 0; i < size; i += kLanes) {
        Words bits = _mm256_and_si256(_mm256_set1_epi32(mask[i / 8]), bit_of_lane);
        Lanes allowed = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, bit_of_lane));
        store(to.scores.data() + i, _mm256_blendv_ps(all(kLowest), load_upto(scores + i, size - i), allowed));
    }
    return to.scores.data();
}

// Apply bias and penalties in place, keeping what was there.
void edit(float* scores, const Edit* edits, int count, std::vector<float>& before) {
    before.resize(count);
    for (int i = 0; i < count; i++) {
        float& score = scores[edits[i].token];
        before[i] = score;
        double repeated = score > 0.0f ? double{score} / edits[i].repetition : double{score} * edits[i].repetition;
        score = static_cast<float>(repeated + edits[i].added);
    }
}

void restore(float* scores, const Edit* edits, int count, const std::vector<float>& before) {
    for (int i = 0; i < count; i++) scores[edits[i].token] = before[i];
}

Best choose(float* row, int size, const Ask& ask, Scratch& scratch) {
    const float* scores = row;
    if (ask.mask) scores = masked(scratch, row, size, reinterpret_cast<const uint8_t*>(ask.mask));
    Best best = best_of(scores, size);
    if (!best.is_numeric || ask.coldness == 0.0f) return best;
    int64_t total = weigh(scratch, scores, size, best.score, ask.coldness);
    bool is_limited = ask.top_k || ask.top_p < 1.0 || ask.least;
    best.token = is_limited ? draw_of_some(scratch, ask, size, total)
                            : draw_of_all(scratch, part_of(total, ask.number));
    return best;
}

// Report the `wanted` likeliest tokens; return the logarithm of the sum of e^score.
double report(const float* scores, int size, int wanted, int32_t* tokens, float* logprobs, Scratch& scratch) {
    float best = best_of(scores, size).score;
    double sum = best + std::log(weigh(scratch, scores, size, best, kLog2E) / kWhole);
    if (wanted <= 0) return sum;
    int count = gather(scratch, size, reached_by(scratch, size, wanted) * kSlack);
    auto likelier = [scores](int a, int b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; };
    std::partial_sort(scratch.found.begin(), scratch.found.begin() + wanted, scratch.found.begin() + count, likelier);
    for (int i = 0; i < wanted; i++) {
        tokens[i] = scratch.found[i];
        logprobs[i] = static_cast<float>(scores[tokens[i]] - sum);
    }
    return sum;
}

thread_local Scratch scratch_of_thread;

// Do the rows in turn, or let a team share them; a row is computed alike by whoever takes it.
template <class Piece>
void each_row(Team* team, int rows, const Piece& piece) {
    if (team && rows > 1)
        team->run([&] { team->each(rows, piece); });
    else
        for (int row = 0; row < rows; row++) piece(row);
}

}  // namespace
}  // namespace windlass

using namespace windlass;

// Choose one token of each row; `stride` alternatives have room in a row of the last two arrays.
extern "C" void windlass_draw(Team* team, float* logits, int rows, int size, const Ask* asks, const Edit* edits,
                              int32_t* tokens, uint8_t* numeric, float* logprobs, int32_t* rivals,
                              float* rival_logprobs, int stride) {
    each_row(team, rows, [&](int i) {
        Scratch& scratch = scratch_of_thread;
        scratch.fit(size);
        const Ask& ask = asks[i];
        float* row = logits + static_cast<int64_t>(i) * size;
        const Edit* own = edits + ask.first_edit;
        double sum = 0.0;
        if (ask.wanted >= 0)
            sum = report(row, size, ask.wanted, rivals + i * stride, rival_logprobs + i * stride, scratch);
        edit(row, own, ask.edits, scratch.before);
        Best best = choose(row, size, ask, scratch);
        restore(row, own, ask.edits, scratch.before);
        tokens[i] = best.token;
        numeric[i] = best.is_numeric;
        logprobs[i] = static_cast<float>(row[best.token] - sum);
    });
}

// Report the log-probabilities of given tokens and of the `wanted` likeliest of each row.
extern "C" void windlass_score(Team* team, const float* logits, int rows, int size, const int32_t* targets,
                               int wanted, float* logprobs, int32_t* rivals, float* rival_logprobs) {
    each_row(team, rows, [&](int i) {
        Scratch& scratch = scratch_of_thread;
        scratch.fit(size);
        const float* row = logits + static_cast<int64_t>(i) * size;
        double sum = report(row, size, wanted, rivals + i * wanted, rival_logprobs + i * wanted, scratch);
        logprobs[i] = static_cast<float>(row[targets[i]] - sum);
    });
}
