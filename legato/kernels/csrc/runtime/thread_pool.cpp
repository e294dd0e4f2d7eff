#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

namespace legato {

namespace {

// Longer than the pauses between the operations of a step, much shorter than a time slice of the system.
constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerLook = 32;
constexpr uint32_t kChunksPerThread = 4;  // of what is unclaimed: large chunks first, small ones to end together

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` is no pause at all on most cores
#endif
}

template <typename Condition>
bool spin_until(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < kPausesPerLook; ++i) {
            if (condition()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
    if (num_threads < 1) throw std::invalid_argument("a thread pool needs at least one thread");
    for (int thread = 1; thread < num_threads; ++thread) {
        workers_.emplace_back([this, thread] { work_until_stopped(thread); });
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    job_opened_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_parts, int64_t grain, const Work& work) {
    if (num_parts <= 0) return;
    if (num_parts > std::numeric_limits<int32_t>::max()) throw std::length_error("too many parts in a job");
    std::lock_guard one_at_a_time(run_mutex_);
    if (num_parts <= grain || workers_.empty()) return work(0, num_parts, 0);

    const auto parts = static_cast<uint32_t>(num_parts);
    work_.store(&work, std::memory_order_relaxed);
    num_parts_.store(parts, std::memory_order_relaxed);
    grain_.store(static_cast<uint32_t>(std::max<int64_t>(grain, 1)), std::memory_order_relaxed);
    unfinished_.store(parts, std::memory_order_relaxed);
    // In one total order with num_sleeping_: either we see the sleeper, or the sleeper sees the job.
    ticket_.store(Ticket{ticket_.load().job + 1, parts});
    if (num_sleeping_.load() > 0) {
        std::lock_guard lock(mutex_);
        job_opened_.notify_all();
    }
    claim_chunks(0);
    wait_for_parts();
}

void ThreadPool::work_until_stopped(int thread) {
    while (wait_for_job()) claim_chunks(thread);
}

// False when the pool ends. A thread that has waited long sleeps, so that an idle pool uses no processor.
bool ThreadPool::wait_for_job() {
    const auto is_awaited = [this] { return has_unclaimed() || stopped_.load(std::memory_order_relaxed); };
    if (!spin_until(is_awaited)) {
        std::unique_lock lock(mutex_);
        ++num_sleeping_;
        job_opened_.wait(lock, is_awaited);
        --num_sleeping_;
    }
    return !stopped_;
}

uint32_t ThreadPool::chunk(uint32_t unclaimed, uint32_t grain) const {
    const auto share = unclaimed / (kChunksPerThread * static_cast<uint32_t>(num_threads()));
    return std::min(std::max(share, grain), unclaimed);
}

void ThreadPool::claim_chunks(int thread) {
    auto ticket = ticket_.load();
    while (ticket.unclaimed > 0) {
        const auto* work = work_.load(std::memory_order_relaxed);
        const auto num_parts = num_parts_.load(std::memory_order_relaxed);
        const auto claimed = chunk(ticket.unclaimed, grain_.load(std::memory_order_relaxed));
        const auto left = Ticket{ticket.job, ticket.unclaimed - claimed};
        // Success means that the job was still open, hence that what was read above belongs to it.
        if (!ticket_.compare_exchange_weak(ticket, left, std::memory_order_acq_rel, std::memory_order_acquire)) continue;

        const auto begin = num_parts - ticket.unclaimed;
        (*work)(begin, begin + claimed, thread);
        if (unfinished_.fetch_sub(claimed, std::memory_order_acq_rel) == claimed && thread != 0) {
            std::lock_guard lock(mutex_);  // the caller is not between its last look and its sleep
            job_ended_.notify_one();
        }
        ticket = ticket_.load();
    }
}

void ThreadPool::wait_for_parts() {
    const auto has_ended = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(has_ended)) return;
    std::unique_lock lock(mutex_);
    job_ended_.wait(lock, has_ended);
}

}  // namespace legato
