// The product behind every step of a hidden Markov model; see models/hmm/product.py.
//
// out[b][n] = sum over k, in order, of rows[b][k] * matrix[k][n]. Columns go in tiles whose sums stay in the
// first cache while the matrix streams by; that changes no order of any sum.

#include <algorithm>

namespace {

constexpr int kTile = 1024;
constexpr int kRows = 4;

void add_row(float weight, const float* __restrict row, float* __restrict out, int columns) {
    for (int n = 0; n < columns; ++n) out[n] += weight * row[n];
}

}  // namespace

extern "C" void windlass_hmm_product(const float* rows, const float* matrix, float* out, int count, int inner,
                                     int columns) {
    std::fill(out, out + static_cast<long>(count) * columns, 0.0f);
    for (int first = 0; first < count; first += kRows) {
        const int last = std::min(first + kRows, count);
        for (int from = 0; from < columns; from += kTile) {
            const int width = std::min(kTile, columns - from);
            for (int k = 0; k < inner; ++k) {
                const float* row = matrix + static_cast<long>(k) * columns + from;
                for (int b = first; b < last; ++b) {
                    const float weight = rows[static_cast<long>(b) * inner + k];
                    add_row(weight, row, out + static_cast<long>(b) * columns + from, width);
                }
            }
        }
    }
}
