// Threads that share the parts of one job at a time, without barriers: the job ends when its parts have, so a thread
// that the system put aside holds up its own chunk and nothing else.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace legato {

class ThreadPool {
 public:
    // Computes parts [begin, end) as thread number `thread`, 0 for the caller; it must not throw.
    using Work = std::function<void(int64_t begin, int64_t end, int thread)>;

    explicit ThreadPool(int num_threads);  // the caller is one of them
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Returns when `work` has computed all parts, each once. Chunks have at least `grain` parts (the last may have
    // fewer) and get smaller towards the end. Calls from several threads take turns.
    void run(int64_t num_parts, int64_t grain, const Work& work);

 private:
    // Which job is open and how many of its parts nobody has claimed. One word, so that a thread which comes late
    // cannot claim a part of the next job in the name of this one: its exchange fails.
    struct Ticket {
        uint32_t job;
        uint32_t unclaimed;
    };

    void work_until_stopped(int thread);
    bool wait_for_job();
    void claim_chunks(int thread);
    void wait_for_parts();
    uint32_t chunk(uint32_t unclaimed, uint32_t grain) const;
    bool has_unclaimed() const { return ticket_.load().unclaimed > 0; }

    std::mutex run_mutex_;  // held by the thread whose job is open

    alignas(64) std::atomic<Ticket> ticket_{Ticket{0, 0}};
    alignas(64) std::atomic<uint32_t> unfinished_{0};  // parts of the open job
    // The open job. Atomic because a late thread may read them while the next job is written; its claim then fails.
    alignas(64) std::atomic<const Work*> work_{nullptr};
    std::atomic<uint32_t> num_parts_{0};
    std::atomic<uint32_t> grain_{1};

    std::atomic<int> num_sleeping_{0};
    std::atomic<bool> stopped_{false};
    std::mutex mutex_;  // only for those who sleep and those who wake them
    std::condition_variable job_opened_, job_ended_;
    std::vector<std::thread> workers_;
};

}  // namespace legato
