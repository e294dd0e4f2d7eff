#include "probe.h"

#include <algorithm>
#include <atomic>

namespace legato {

namespace {

constexpr int64_t kPartFloats = 64 * 1024;  // a claim is nothing beside them
constexpr int64_t kPartsPerThread = 16;     // so that a thread which was put aside holds up little

}  // namespace

double probe_read(const Kernels& kernels, ThreadPool& pool, const float* data, int64_t size) {
    std::atomic<double> total{0};
    pool.run((size + kPartFloats - 1) / kPartFloats, 1, [&](int64_t begin, int64_t end, int) {
        const double sum = kernels.probe_read(data, begin * kPartFloats, std::min(end * kPartFloats, size));
        for (double before = total.load(); !total.compare_exchange_weak(before, before + sum);) {
        }
    });
    return total;
}

int64_t probe_multiply(const Kernels& kernels, ThreadPool& pool, Format format, int64_t rounds) {
    std::atomic<int64_t> num_done{0};
    const auto part_rounds = (rounds + kPartsPerThread - 1) / kPartsPerThread;
    pool.run(kPartsPerThread * pool.num_threads(), 1, [&](int64_t begin, int64_t end, int) {
        int32_t sink;  // nobody reads it, which the kernels cannot know
        num_done += kernels.probe_multiply(format, part_rounds * (end - begin), &sink);
    });
    return num_done;
}

}  // namespace legato
