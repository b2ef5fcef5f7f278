// What every native library of ours reports about itself; see models/native_loader.py.

#ifndef WINDLASS_SOURCES
#define WINDLASS_SOURCES 0u
#endif

extern "C" unsigned windlass_models_sources() { return WINDLASS_SOURCES; }

extern "C" int windlass_models_supported() {
#if defined(__AVX2__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}
