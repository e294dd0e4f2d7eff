// The ceilings of a machine, by all threads at once: how fast they read memory and how fast they multiply.
#pragma once

#include <cstdint>

#include "../ops.h"
#include "thread_pool.h"

namespace legato {

// The sum of data[0, size).
double probe_read(const Kernels& kernels, ThreadPool& pool, const float* data, int64_t size);

// `rounds` of multiply-adds by each thread, as products with weights of the format make them; gives how many in all.
int64_t probe_multiply(const Kernels& kernels, ThreadPool& pool, Format format, int64_t rounds);

}  // namespace legato
