// What the door from Python takes and gives: numpy arrays, and how they are refused.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "../runtime/require.h"

namespace nb = nanobind;

namespace legato {

template <typename T, int dims>
using Array = nb::ndarray<const T, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;

inline void require_size(const char* name, size_t found, int64_t wanted) {
    require(static_cast<int64_t>(found) == wanted,
            std::string(name) + ": " + std::to_string(found) + " entries, must be " + std::to_string(wanted));
}

// Zeros, to be filled and then owned by Python.
template <typename T, int dims>
nb::ndarray<nb::numpy, T, nb::ndim<dims>> new_array(const std::array<size_t, dims>& shape) {
    size_t size = 1;
    for (const auto each : shape) size *= each;
    auto values = std::make_unique<T[]>(size);
    nb::capsule owner(values.get(), [](void* data) noexcept { delete[] static_cast<T*>(data); });
    return {values.release(), dims, shape.data(), owner};
}

}  // namespace legato
