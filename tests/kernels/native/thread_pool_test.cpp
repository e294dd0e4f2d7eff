// Drives the thread pool by itself, for a sanitizer of threads to watch: each part is computed once and seen by the
// caller, whatever the sizes and the pauses; an idle pool uses no processor; several callers take turns.
#include "runtime/thread_pool.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

void compute_jobs(legato::ThreadPool& pool, int num_jobs, uint32_t seed) {
    std::vector<int> counts;  // plain: a race on them is what the sanitizer is to find
    for (int job = 0; job < num_jobs; ++job) {
        seed = seed * 1664525 + 1013904223;
        const int64_t num_parts = 1 + (seed >> 16) % 700, grain = 1 + (seed >> 8) % 16;
        counts.assign(static_cast<size_t>(num_parts), 0);
        pool.run(num_parts, grain, [&](int64_t begin, int64_t end, int thread) {
            check(thread >= 0 && thread < pool.num_threads(), "the thread has a number of this pool");
            for (auto part = begin; part < end; ++part) ++counts[static_cast<size_t>(part)];
        });
        for (const int count : counts) check(count == 1, "each part is computed once");
        if (job % 500 == 499) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the workers fall asleep
    }
}

void rest(legato::ThreadPool& pool) {
    compute_jobs(pool, 10, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto before = std::clock();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto used_s = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
    check(used_s < 0.03, "an idle pool uses no processor");
}

}  // namespace

int main() {
    for (const int num_threads : {1, 2, 3, 8}) {
        legato::ThreadPool pool(num_threads);
        compute_jobs(pool, 3000, static_cast<uint32_t>(num_threads));
        std::thread other([&] { compute_jobs(pool, 1000, 7); });
        compute_jobs(pool, 1000, 9);
        other.join();
        rest(pool);
    }
    std::puts("thread pool: ok");
}
