#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "lanes.h"

namespace windlass {
namespace {

constexpr int kBlockRows = 96;  // so many rows of activations stay in the second cache while panels pass by

template <class T>
void pack_plain(int n, int k, const T* values, T* packed) {
    for (int panel = 0; panel * kPanel < n; panel++) {
        T* to = packed + size_t(panel) * k * kPanel;
        int columns = std::min(kPanel, n - panel * kPanel);
        for (int column = 0; column < columns; column++) {
            const T* from = values + size_t(panel * kPanel + column) * k;
            for (int i = 0; i < k; i++) to[size_t(i) * kPanel + column] = from[i];
        }
    }
}

void pack_scales(Matrix& matrix, const float* scales) {
    int groups = matrix.groups();
    matrix.scales = Piece<float>(size_t(matrix.panels()) * groups * kPanel);
    matrix.offsets = Piece<int32_t>(size_t(matrix.panels()) * groups * kPanel);
    for (int row = 0; row < matrix.n; row++)
        for (int g = 0; g < groups; g++)
            matrix.scales[(size_t(row / kPanel) * groups + g) * kPanel + row % kPanel] = scales[size_t(row) * groups + g];
}

// `weight(row, k)` gives the integer; `put(panel, k, column, value)` keeps it.
template <class Weight, class Put>
void pack_integers(Matrix& matrix, const Weight& weight, const Put& put) {
    int groups = matrix.groups();
    for (int row = 0; row < matrix.n; row++)
        for (int i = 0; i < matrix.k; i++) {
            int value = weight(row, i);
            put(row / kPanel, i, row % kPanel, value);
            matrix.offsets[(size_t(row / kPanel) * groups + i / matrix.group) * kPanel + row % kPanel] -= 128 * value;
        }
}

template <int M, int P, class T>
void tile(const T* const* panels, int k, const float* x, int stride, Lanes (&sums)[M][2 * P]) {
    for (int m = 0; m < M; m++)
        for (int p = 0; p < 2 * P; p++) sums[m][p] = zero();
    for (int i = 0; i < k; i++) {
        Lanes weights[2 * P];
        for (int p = 0; p < P; p++) {
            weights[2 * p] = load(panels[p] + size_t(i) * kPanel);
            weights[2 * p + 1] = load(panels[p] + size_t(i) * kPanel + kLanes);
        }
        for (int m = 0; m < M; m++) {
            Lanes value = all(x[size_t(m) * stride + i]);
            for (int p = 0; p < 2 * P; p++) sums[m][p] = fma(value, weights[p], sums[m][p]);
        }
    }
}

inline void keep(float* out, int columns, Lanes value, const float* bias, Then then) {
    if (columns >= kLanes) {
        if (bias) value = _mm256_add_ps(value, load(bias));
        if (then == Then::kAdd) value = _mm256_add_ps(load(out), value);
        store(out, value);
        return;
    }
    float some[kLanes];
    store(some, value);
    for (int c = 0; c < columns; c++) {
        float sum = bias ? some[c] + bias[c] : some[c];
        out[c] = then == Then::kAdd ? out[c] + sum : sum;
    }
}

struct Target {
    float* out;
    int stride;
    const float* bias;
    Then then;
    int n;
};

// Within its caller, or the sums would travel through memory.
template <int M, int P>
[[gnu::always_inline]] inline void keep_tile(const Target& to, int row, int panel, Lanes (&sums)[M][2 * P]) {
    if ((panel + P) * kPanel <= to.n && !to.bias) {
        for (int m = 0; m < M; m++) {
            float* out = to.out + size_t(row + m) * to.stride + panel * kPanel;
            for (int p = 0; p < 2 * P; p++)
                store(out + p * kLanes, to.then == Then::kAdd ? _mm256_add_ps(load(out + p * kLanes), sums[m][p]) : sums[m][p]);
        }
        return;
    }
    for (int m = 0; m < M; m++)
        for (int p = 0; p < 2 * P; p++) {
            int column = panel * kPanel + p * kLanes;
            if (column < to.n)
                keep(to.out + size_t(row + m) * to.stride + column, to.n - column, sums[m][p],
                     to.bias ? to.bias + column : nullptr, to.then);
        }
}

template <int M, int P, class T>
void float_tile(const Matrix& matrix, const T* weights, const Rows& in, int row, int panel, const Target& to) {
    const T* panels[P];
    for (int p = 0; p < P; p++) panels[p] = weights + size_t(panel + p) * matrix.k * kPanel;
    Lanes sums[M][2 * P];
    tile<M, P>(panels, matrix.k, in.values + size_t(row) * in.stride, in.stride, sums);
    keep_tile<M, P>(to, row, panel, sums);
}

// Four k of 16 outputs as two registers of signed bytes.
inline void unpack(const int8_t* from, Words& low, Words& high, std::integral_constant<Kind, Kind::kInt8>) {
    low = _mm256_loadu_si256(reinterpret_cast<const Words*>(from));
    high = _mm256_loadu_si256(reinterpret_cast<const Words*>(from + 32));
}
inline void unpack(const int8_t* from, Words& low, Words& high, std::integral_constant<Kind, Kind::kInt4>) {
    Words both = _mm256_loadu_si256(reinterpret_cast<const Words*>(from));
    Words mask = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8);
    low = _mm256_sub_epi8(_mm256_and_si256(both, mask), eight);
    high = _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), eight);
}

template <int M, int P, Kind kind>
void integer_tile(const Matrix& matrix, const Rows& in, int row, int panel, const Target& to) {
    constexpr int kStep = kind == Kind::kInt8 ? 64 : 32;  // bytes for four k of a panel
    const Words ones = _mm256_set1_epi16(1);
    const int groups = matrix.groups(), quads = matrix.group / 4;
    Lanes sums[M][2 * P];
    for (int m = 0; m < M; m++)
        for (int p = 0; p < 2 * P; p++) sums[m][p] = zero();
    for (int g = 0; g < groups; g++) {
        Words whole[M][2 * P];
        const int8_t* weights[P];
        for (int p = 0; p < P; p++) {
            size_t at = size_t(panel + p) * groups + g;
            weights[p] = matrix.bytes.data() + at * quads * kStep;
            const Words* offset = reinterpret_cast<const Words*>(matrix.offsets.data() + at * kPanel);
            for (int m = 0; m < M; m++) {
                whole[m][2 * p] = _mm256_loadu_si256(offset);
                whole[m][2 * p + 1] = _mm256_loadu_si256(offset + 1);
            }
        }
        const uint8_t* levels = in.levels + size_t(row) * in.level_stride + g * matrix.group;
        for (int q = 0; q < quads; q++)
            for (int p = 0; p < P; p++) {
                Words low, high;
                unpack(weights[p] + q * kStep, low, high, std::integral_constant<Kind, kind>());
                for (int m = 0; m < M; m++) {
                    int32_t four;
                    std::memcpy(&four, levels + size_t(m) * in.level_stride + 4 * q, 4);
                    Words value = _mm256_set1_epi32(four);
                    whole[m][2 * p] = _mm256_add_epi32(
                        whole[m][2 * p], _mm256_madd_epi16(_mm256_maddubs_epi16(value, low), ones));
                    whole[m][2 * p + 1] = _mm256_add_epi32(
                        whole[m][2 * p + 1], _mm256_madd_epi16(_mm256_maddubs_epi16(value, high), ones));
                }
            }
        for (int p = 0; p < P; p++) {
            const float* scale = matrix.scales.data() + (size_t(panel + p) * groups + g) * kPanel;
            for (int half = 0; half < 2; half++)
                for (int m = 0; m < M; m++)
                    sums[m][2 * p + half] =
                        fma(_mm256_cvtepi32_ps(whole[m][2 * p + half]), load(scale + half * kLanes), sums[m][2 * p + half]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int p = 0; p < 2 * P; p++) sums[m][p] = _mm256_mul_ps(sums[m][p], all(in.scales[row + m]));
    keep_tile<M, P>(to, row, panel, sums);
}

template <int M, int P>
void any_tile(const Matrix& matrix, const Rows& in, int row, int panel, const Target& to) {
    switch (matrix.kind) {
        case Kind::kFloat32: return float_tile<M, P>(matrix, matrix.floats.data(), in, row, panel, to);
        case Kind::kBfloat16: return float_tile<M, P>(matrix, matrix.halves.data(), in, row, panel, to);
        case Kind::kInt8: return integer_tile<M, P, Kind::kInt8>(matrix, in, row, panel, to);
        case Kind::kInt4: return integer_tile<M, P, Kind::kInt4>(matrix, in, row, panel, to);
    }
}

// One tile of at most 6 rows and, if they are few, of several panels, or a chain would wait for itself.
void tile_of(int m, int p, const Matrix& matrix, const Rows& in, int row, int panel, const Target& to) {
    switch (m * 8 + p) {
        case 1 * 8 + 4: return any_tile<1, 4>(matrix, in, row, panel, to);
        case 1 * 8 + 3: return any_tile<1, 3>(matrix, in, row, panel, to);
        case 1 * 8 + 2: return any_tile<1, 2>(matrix, in, row, panel, to);
        case 1 * 8 + 1: return any_tile<1, 1>(matrix, in, row, panel, to);
        case 2 * 8 + 2: return any_tile<2, 2>(matrix, in, row, panel, to);
        case 2 * 8 + 1: return any_tile<2, 1>(matrix, in, row, panel, to);
        case 3 * 8 + 2: return any_tile<3, 2>(matrix, in, row, panel, to);
        case 3 * 8 + 1: return any_tile<3, 1>(matrix, in, row, panel, to);
        case 4 * 8 + 1: return any_tile<4, 1>(matrix, in, row, panel, to);
        case 5 * 8 + 1: return any_tile<5, 1>(matrix, in, row, panel, to);
        case 6 * 8 + 1: return any_tile<6, 1>(matrix, in, row, panel, to);
    }
}

// Rows times panels: a panel stays in the first cache while all rows, in tiles as equal as they come, use it.
void block(const Matrix& matrix, const Rows& in, int first, int rows, int panel, int panels, int most, const Target& to) {
    const int tiles = (rows + most - 1) / most;
    const int widest = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    for (int p = 0; p < panels;) {
        int wide = std::min(widest, panels - p);
        for (int t = 0, row = first; t < tiles; t++) {
            int m = (rows - (row - first) + tiles - t - 1) / (tiles - t);
            tile_of(m, wide, matrix, in, row, panel + p, to);
            row += m;
        }
        p += wide;
    }
}

// How many panels a thread takes at once: few enough that all threads end together.
int panels_at_once(int panels, int rows, int threads) {
    if (rows == 1) {
        for (int at_once : {4, 3, 2})
            if (panels % (at_once * threads) == 0) return at_once;
        return panels < 64 * threads ? 2 : 4;
    }
    return std::clamp(panels / (8 * threads), rows <= 3 ? 2 : 1, 8);
}

}  // namespace

void multiply(Team& team, const Matrix& matrix, const Rows& in, int rows, float* out, int out_stride,
              const float* bias, Then then) {
    const Target to{out, out_stride, bias, then, matrix.n};
    const int most = matrix.is_integer() ? 4 : 6;
    const int panels = matrix.panels(), group = panels_at_once(panels, rows, team.size());
    const int groups = (panels + group - 1) / group;
    const int blocks = (rows + kBlockRows - 1) / kBlockRows;
    team.each(groups * blocks, [&](int piece) {
        int first = piece / groups * kBlockRows, panel = piece % groups * group;
        block(matrix, in, first, std::min(kBlockRows, rows - first), panel, std::min(group, panels - panel), most, to);
    });
}

void quantise(const float* values, int width, uint8_t* levels, int padded_width, float* scale) {
    // A maximum forgets what is no number; a sum of zeros does not, and infinity times zero is no number either.
    Lanes most = zero(), zeros = zero();
    const Lanes sign = all(-0.0f);
    int i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        Lanes value = load(values + i);
        most = _mm256_max_ps(most, _mm256_andnot_ps(sign, value));
        zeros = fma(value, zero(), zeros);
    }
    float largest_value = largest(most), trouble = sum(zeros);
    for (; i < width; i++) {
        largest_value = std::max(largest_value, std::fabs(values[i]));
        trouble += values[i] * 0.0f;
    }
    if (trouble != 0.0f) {  // the row's products are no numbers either
        std::fill_n(levels, padded_width, uint8_t(128));
        *scale = NAN;
        return;
    }
    float inverse = largest_value > 0.0f ? 127.0f / largest_value : 0.0f;
    *scale = largest_value / 127.0f;
    for (i = 0; i < width; i++) levels[i] = uint8_t(int(std::nearbyintf(values[i] * inverse)) + 128);
    for (; i < padded_width; i++) levels[i] = 128;
}

std::unique_ptr<Matrix> pack_floats(int n, int k, const float* values) {
    auto matrix = std::make_unique<Matrix>(Kind::kFloat32, n, k, 0);
    matrix->floats = Piece<float>(size_t(matrix->panels()) * k * kPanel);
    pack_plain(n, k, values, matrix->floats.data());
    return matrix;
}

std::unique_ptr<Matrix> pack_halves(int n, int k, const uint16_t* values) {
    auto matrix = std::make_unique<Matrix>(Kind::kBfloat16, n, k, 0);
    matrix->halves = Piece<uint16_t>(size_t(matrix->panels()) * k * kPanel);
    pack_plain(n, k, values, matrix->halves.data());
    return matrix;
}

std::unique_ptr<Matrix> pack_int8(int n, int k, int group, const int8_t* values, const float* scales) {
    auto matrix = std::make_unique<Matrix>(Kind::kInt8, n, k, group);
    pack_scales(*matrix, scales);
    size_t quads = matrix->padded_k() / 4;
    matrix->bytes = Piece<int8_t>(matrix->panels() * quads * 64);
    pack_integers(
        *matrix, [&](int row, int i) { return int(values[row * quads * 4 + i]); },
        [&](int panel, int i, int column, int value) {
            matrix->bytes[(panel * quads + i / 4) * 64 + column * 4 + i % 4] = int8_t(value);
        });
    return matrix;
}

std::unique_ptr<Matrix> pack_int4(int n, int k, int group, const uint8_t* values, const float* scales) {
    auto matrix = std::make_unique<Matrix>(Kind::kInt4, n, k, group);
    pack_scales(*matrix, scales);
    size_t quads = matrix->padded_k() / 4;
    matrix->bytes = Piece<int8_t>(matrix->panels() * quads * 32);
    std::memset(matrix->bytes.data(), 0x88, matrix->panels() * quads * 32);  // zero, as a nibble
    pack_integers(
        *matrix,
        [&](int row, int i) {
            uint8_t both = values[row * quads * 2 + i / 2];
            return int(i % 2 ? both >> 4 : both & 15) - 8;
        },
        [&](int panel, int i, int column, int value) {
            int8_t& at = matrix->bytes[(panel * quads + i / 4) * 32 + column % 8 * 4 + i % 4];
            uint8_t nibble = uint8_t(value + 8);
            at = column < 8 ? int8_t((uint8_t(at) & 0xF0) | nibble) : int8_t((uint8_t(at) & 0x0F) | nibble << 4);
        });
    return matrix;
}

void Matrix::row(int row, float* out) const {
    int panel = row / kPanel, column = row % kPanel;
    size_t quads = padded_k() / 4;
    for (int i = 0; i < k; i++) {
        size_t plain = (size_t(panel) * k + i) * kPanel + column;
        if (kind == Kind::kFloat32) {
            out[i] = floats[plain];
        } else if (kind == Kind::kBfloat16) {
            uint32_t bits = uint32_t(halves[plain]) << 16;
            std::memcpy(&out[i], &bits, 4);
        } else {
            float scale = scales[(size_t(panel) * groups() + i / group) * kPanel + column];
            int value;
            if (kind == Kind::kInt8) {
                value = bytes[(panel * quads + i / 4) * 64 + column * 4 + i % 4];
            } else {
                uint8_t both = uint8_t(bytes[(panel * quads + i / 4) * 32 + column % 8 * 4 + i % 4]);
                value = (column < 8 ? both & 15 : both >> 4) - 8;
            }
            out[i] = float(value) * scale;
        }
    }
}

}  // namespace windlass
