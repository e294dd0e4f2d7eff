// Vectors of the instruction set that this translation unit is compiled for, under one set of names.
//
// An isa/*.cpp defines one of LEGATO_SIMD_{SCALAR,AVX2,AVX512,NEON} and includes this, then generic/*.h, inside a
// namespace of its own. Everything here has internal linkage: code compiled for one set must never be what the
// linker picks for another.
//
//   F32  kLanes floats        I32  kLanes 32-bit integers
//
// Every function below exists in every set, with the same meaning; what differs is kLanes, and so the bits of sums
// over lanes. Within one set a sum's order is fixed: reduce_add is a tree of fixed shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(LEGATO_SIMD_AVX512)
#include "simd_avx512.h"
#elif defined(LEGATO_SIMD_AVX2)
#include "simd_avx2.h"
#elif defined(LEGATO_SIMD_NEON)
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif
