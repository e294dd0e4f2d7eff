#include "buffer_plan.h"

#include <algorithm>
#include <numeric>

namespace legato {

namespace {

// The smallest free buffer that holds num_bytes, else the largest free one, to be enlarged; -1 when none is free.
int best_free(const BufferPlan& plan, const std::vector<int>& busy_until, const Lifetime& lifetime) {
    int best = -1;
    for (int buffer = 0; buffer < static_cast<int>(busy_until.size()); ++buffer) {
        if (busy_until[buffer] >= lifetime.first) continue;
        if (best < 0) {
            best = buffer;
            continue;
        }
        const auto bytes = plan.num_bytes[buffer], best_bytes = plan.num_bytes[best];
        const bool is_better = best_bytes < lifetime.num_bytes ? bytes > best_bytes
                                                               : bytes >= lifetime.num_bytes && bytes < best_bytes;
        if (is_better) best = buffer;
    }
    return best;
}

}  // namespace

BufferPlan plan_buffers(const std::vector<Lifetime>& lifetimes) {
    std::vector<size_t> order(lifetimes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return lifetimes[a].first < lifetimes[b].first; });

    BufferPlan plan{std::vector<int>(lifetimes.size()), {}};
    std::vector<int> busy_until;
    for (const auto index : order) {
        const auto& lifetime = lifetimes[index];
        int buffer = best_free(plan, busy_until, lifetime);
        if (buffer < 0) {
            buffer = static_cast<int>(busy_until.size());
            plan.num_bytes.push_back(0);
            busy_until.push_back(0);
        }
        plan.num_bytes[buffer] = std::max(plan.num_bytes[buffer], lifetime.num_bytes);
        busy_until[buffer] = lifetime.last;
        plan.buffer_of[index] = buffer;
    }
    return plan;
}

}  // namespace legato
