// A team of threads that go through the phases of a step together.
//
// Threads take pieces of a phase as they come (`Team::each`), so one that the system holds up leaves its
// share to the others. Between phases they wait for each other by spinning, because a phase lasts
// microseconds; a team without work sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace windlass {

class Team {
public:
    explicit Team(int threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return size_; }

    // Let every thread run `work`; return when all are done.
    void run(const std::function<void()>& work);

    // Inside `run`: do `piece(i)` for all i below `count`, each once, then wait for everybody.
    template <class Piece>
    void each(int count, const Piece& piece) {
        // The counter in use alternates, so that the last thread to arrive can clear the other one.
        std::atomic<int>& next = next_[phase_of_thread_ & 1];
        for (int i = next.fetch_add(1, std::memory_order_relaxed); i < count;
             i = next.fetch_add(1, std::memory_order_relaxed))
            piece(i);
        meet();
    }

private:
    void meet();
    void serve();

    static thread_local unsigned phase_of_thread_;
    const int size_;
    std::atomic<int> next_[2] = {{0}, {0}};
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> met_{0};
    std::atomic<unsigned> call_{0};
    std::atomic<int> busy_{0};
    std::atomic<bool> ending_{false};
    const std::function<void()>* work_ = nullptr;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
};

}  // namespace windlass
