// The library's C API: plain C, so that Python needs no headers to build it and ctypes can call it.
//
// Pointers that are handed in belong to the caller, who keeps them alive; what windlass_pack_* and windlass_*_new
// return is freed by its windlass_free_*.
#include <cstring>
#include <exception>

#include "model.h"

using namespace windlass;

#ifndef WINDLASS_SOURCES
#define WINDLASS_SOURCES 0u
#endif

extern "C" {

// A checksum of the sources that this was built from.
unsigned windlass_sources() { return WINDLASS_SOURCES; }

// Whether this machine can run the kernels.
int windlass_supported() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return 0;
#endif
}

Team* windlass_team_new(int threads) { return new Team(threads); }
void windlass_team_free(Team* team) { delete team; }

// kind: 0 float32, 1 bfloat16, 2 int8, 3 int4; values are (n, k) row by row, scales (n, groups). Rows of
// integers are filled up to whole groups; a byte of int4 holds two, the even k low, 8 standing for 0.
Matrix* windlass_pack(int kind, int n, int k, int group, const void* values, const float* scales) {
    try {
        switch (Kind(kind)) {
            case Kind::kFloat32: return pack_floats(n, k, static_cast<const float*>(values)).release();
            case Kind::kBfloat16: return pack_halves(n, k, static_cast<const uint16_t*>(values)).release();
            case Kind::kInt8: return pack_int8(n, k, group, static_cast<const int8_t*>(values), scales).release();
            case Kind::kInt4: return pack_int4(n, k, group, static_cast<const uint8_t*>(values), scales).release();
        }
    } catch (const std::exception&) {
    }
    return nullptr;
}
void windlass_matrix_free(Matrix* matrix) { delete matrix; }

// y = x W' for `rows` rows of k floats: for tests and for measuring.
void windlass_multiply(Team* team, const Matrix* matrix, int rows, const float* x, float* y) {
    int level_stride = (matrix->k + 127) / 128 * 128;
    std::vector<uint8_t> levels(matrix->is_integer() ? size_t(rows) * level_stride : 0);
    std::vector<float> scales(rows);
    for (int m = 0; matrix->is_integer() && m < rows; m++)
        quantise(x + size_t(m) * matrix->k, matrix->k, levels.data() + size_t(m) * level_stride, level_stride, &scales[m]);
    Rows in{const_cast<float*>(x), matrix->k, levels.data(), level_stride, scales.data()};
    team->run([&] { multiply(*team, *matrix, in, rows, y, matrix->n, nullptr, Then::kStore); });
}

Model* windlass_model_new(const Config* config, const float* cosines, const float* sines) {
    try {
        return new Model(*config, cosines, sines);
    } catch (const std::exception&) {
        return nullptr;
    }
}
void windlass_model_free(Model* model) { delete model; }

void windlass_layer_matrix(Model* model, int layer, int place, const Matrix* matrix, const float* bias) {
    model->layers[layer].matrices[place] = matrix;
    model->layers[layer].biases[place] = bias;
}
void windlass_layer_norm(Model* model, int layer, int which, const float* weight, const float* bias) {
    model->layers[layer].norms[which] = Norm{weight, bias};
}
void windlass_layer_expert(Model* model, int layer, const Matrix* up, const float* up_bias, const Matrix* down,
                           const float* down_bias) {
    model->layers[layer].experts.push_back(FeedForward{up, down, up_bias, down_bias});
}
// The router of a layer with experts and the part that all tokens pass, if there is one; its gate may be null.
void windlass_layer_router(Model* model, int layer, const Matrix* router, const float* bias, const Matrix* up,
                           const float* up_bias, const Matrix* down, const float* down_bias, const Matrix* gate) {
    model->layers[layer].router = router;
    model->layers[layer].router_bias = bias;
    model->layers[layer].shared = FeedForward{up, down, up_bias, down_bias};
    model->layers[layer].shared_gate = gate;
}
// window: 0 for none; sinks: null for none; angles: the table that turns queries and keys, or -1.
void windlass_layer_attention(Model* model, int layer, int window, float softcap, const float* sinks, int angles) {
    model->layers[layer].rule = Rule{window, softcap, sinks};
    model->layers[layer].angles = angles;
}
void windlass_ends(Model* model, const Matrix* head, const float* table, const uint16_t* table_halves,
             const float* positions, const float* head_bias, const float* norm_weight, const float* norm_bias) {
    model->head = head;
    model->table = table;
    model->table_halves = table_halves;
    model->positions = positions;
    model->head_bias = head_bias;
    model->last_norm = Norm{norm_weight, norm_bias};
}

Adapter* windlass_adapter_new(const Model* model) {
    Adapter* adapter = new Adapter;
    adapter->deltas.resize(size_t(model->config.layers) * kPlaces);
    return adapter;
}
void windlass_adapter_delta(Adapter* adapter, int layer, int place, int column, const Matrix* a, const Matrix* b) {
    adapter->deltas[size_t(layer) * kPlaces + place].push_back(Delta{column, a, b});
}
void windlass_adapter_free(Adapter* adapter) { delete adapter; }

// Let `spans` name the adapters by their place in this list.
void windlass_model_adapters(Model* model, Adapter** adapters, int count) { model->adapters.assign(adapters, adapters + count); }

// Compute a step; return 0, or 1 when there was no memory for it.
int windlass_run(Model* model, Team* team, const Batch* batch) {
    try {
        model->run(*team, *batch);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}

}  // extern "C"
