// What computes, as Python holds it: the kernels of one instruction set, threads, and what they sample with.
#pragma once

#include <string>

#include "../dispatch.h"
#include "../runtime/row_sampler.h"
#include "../runtime/thread_pool.h"

namespace legato {

struct Device {
    Device(const std::string& isa, int num_threads)
        : kernels(kernels_named(isa)), pool(num_threads), sampler(kernels, pool) {}

    const Kernels& kernels;
    ThreadPool pool;
    RowSampler sampler;
};

}  // namespace legato
