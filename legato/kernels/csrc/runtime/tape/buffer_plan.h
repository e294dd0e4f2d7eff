// Which values share memory: those whose lifetimes do not meet.
#pragma once

#include <cstdint>
#include <vector>

namespace legato {

struct Lifetime {
    int64_t num_bytes;
    int first, last;  // times of the first and the last use, both included
};

struct BufferPlan {
    std::vector<int> buffer_of;      // for each lifetime
    std::vector<int64_t> num_bytes;  // of each buffer
};

// Linear scan over lifetimes in order of their first use; of the free buffers the one that fits best is taken.
BufferPlan plan_buffers(const std::vector<Lifetime>& lifetimes);

}  // namespace legato
