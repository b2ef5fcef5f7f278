#include "team.h"

#include <immintrin.h>

namespace windlass {
namespace {

constexpr int kSpins = 4000;        // about 50 microseconds, then the processor is offered to others
constexpr int kSpinsAwake = 40000;  // about a millisecond: the next step of a busy engine comes sooner

}  // namespace

thread_local unsigned Team::phase_of_thread_ = 0;

Team::Team(int threads) : size_(threads < 1 ? 1 : threads) {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this] { serve(); });
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void()>& work) {
    work_ = &work;
    busy_ = size_ - 1;
    next_[0] = next_[1] = 0;
    met_ = 0;
    phase_of_thread_ = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        call_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work();
    for (int spins = 0; busy_.load(std::memory_order_acquire); spins++)
        spins < kSpins ? _mm_pause() : std::this_thread::yield();
}

void Team::meet() {
    unsigned phase = phase_of_thread_++;
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        next_[(phase + 1) & 1].store(0, std::memory_order_relaxed);
        arrived_.store(0, std::memory_order_relaxed);
        met_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int spins = 0; met_.load(std::memory_order_acquire) != phase + 1; spins++)
        spins < kSpins ? _mm_pause() : std::this_thread::yield();
}

void Team::serve() {
    unsigned seen = 0;
    while (true) {
        for (int spins = 0; spins < kSpinsAwake && call_.load(std::memory_order_acquire) == seen; spins++) _mm_pause();
        if (call_.load(std::memory_order_acquire) == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return ending_ || call_.load(std::memory_order_acquire) != seen; });
        }
        if (ending_) return;
        seen = call_.load(std::memory_order_acquire);
        phase_of_thread_ = 0;
        (*work_)();
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace windlass
