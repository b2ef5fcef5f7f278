// Large pieces of memory on large pages: weights are read from end to end for every token, and the
// look-up of small pages costs about a tenth of that.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace windlass {

template <class T>
class Piece {
public:
    Piece() = default;
    explicit Piece(size_t count) {
        if (!count) return;
        bytes_ = count * sizeof(T);
        if (bytes_ < kPage) {  // a large page for every vector of a small model would be waste
            bytes_ += kBeyond;
            data_ = static_cast<T*>(mapped_ = mapping(bytes_));
            return;
        }
        bytes_ = (bytes_ + kPage - 1) / kPage * kPage + kPage;
        mapped_ = mapping(bytes_);
        size_t at = (reinterpret_cast<size_t>(mapped_) + kPage - 1) / kPage * kPage;
        data_ = reinterpret_cast<T*>(at);
#ifdef MADV_HUGEPAGE
        madvise(data_, bytes_ - kPage, MADV_HUGEPAGE);
#endif
    }
    ~Piece() {
        if (mapped_) munmap(mapped_, bytes_);
    }
    Piece(Piece&& other) noexcept { *this = static_cast<Piece&&>(other); }
    Piece& operator=(Piece&& other) noexcept {
        T* data = data_;
        void* mapped = mapped_;
        size_t bytes = bytes_;
        data_ = other.data_, mapped_ = other.mapped_, bytes_ = other.bytes_;
        other.data_ = data, other.mapped_ = mapped, other.bytes_ = bytes;
        return *this;
    }

    T* data() const { return data_; }
    T& operator[](size_t i) const { return data_[i]; }

private:
    static void* mapping(size_t bytes) {
        void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) throw std::bad_alloc();
        return found;
    }

    static constexpr size_t kPage = size_t{1} << 21;
    static constexpr size_t kBeyond = 64;  // what a vector instruction may read past the end
    T* data_ = nullptr;
    void* mapped_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace windlass
