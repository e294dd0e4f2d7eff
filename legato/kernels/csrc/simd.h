// Vectors of the instruction set that this translation unit is compiled for, under one set of names.
//
// An isa/*.cpp includes <cstring>, ops.h and its intrinsics' header, defines one of LEGATO_SIMD_{AVX2,AVX512,NEON} or
// none of them, and includes this, then generic/*.h, inside a namespace of its own. Everything here has internal
// linkage: code compiled for one set must never be what the linker picks for another.
//
//   F32   kLanes floats                     I32  kLanes 32-bit integers
//   Mask  kLanes truths, of a comparison
//
// Every function exists in every set with the same meaning; what differs is kLanes, and so the bits of sums over
// lanes. Within one set a sum's order is fixed: reduce_add is a tree of fixed shape.
//
//   memory      load(p) store(p, v)                 float or int32_t, any alignment
//               load_bf16(p) store_bf16(p, v)       bfloat16 bits; rounds to nearest even, keeps NaN
//               load_f16(p)                         IEEE half bits
//               load_i8(p) store_i8(p, v)           int8 to and from I32; what is stored must fit
//               partial_load(p, n) and the like     the first n < kLanes lanes, the others 0 (or untouched)
//               prefetch(p)
//   F32         set1 zero add sub mul div min max neg abs sqrt (min and max keep a NaN in b; one in a may be lost)
//               fma(a, b, c)                        a * b + c; rounded once, but twice by the scalar set
//               reduce_add(v) reduce_max(v)         over the lanes
//   F64         kLanes doubles, zero as F64{}: add_wide(F64 sum, F32 v) reduce_add(sum)
//   I32         set1 add sub mul bit_and bit_or shift_left<n> shift_right<n> (arithmetic) lane_ids() = 0, 1, 2, ...
//   both        less(a, b) equal(a, b) -> Mask; select(mask, a, b): a where true, else b; any(mask)
//   conversion  to_i32(F32) (rounds to nearest even) to_f32(I32) round(F32); as_i32(F32) as_f32(I32) (the bits)
//   bytes       a lane of an I32 is also four bytes; dot adds the sum of four products of bytes, exactly
//               dot(U6Sum sum, U6Bytes w, I32 x)    w 0..63, x -127..127, from U6Sum{} on
//               u6_sum(I32)                         a sum to begin with: two int16, of even and of odd pairs of bytes
//               to_i32(U6Sum)                       the totals, if those of even and of odd pairs of bytes are below
//                                                   2^15: then what came before may have been above it
//               dot(I32 sum, I8Bytes w, I32 x)      w -128..127, of i8_bytes(I32)
//   kRegisters  how many vectors the machine names: what tiles are sized by
//   kDotsBf16   whether there is dot_bf16(F32 sum, w, x): pairs of bfloat16 in a lane's word, multiplied and summed
#pragma once

#if defined(LEGATO_SIMD_AVX512)
#include "simd_avx512.h"
#elif defined(LEGATO_SIMD_AVX2)
#include "simd_avx2.h"
#elif defined(LEGATO_SIMD_NEON)
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif

// What follows is the same for every set. Tails are rare and short: they go through memory.

static inline F32 partial_load(const float* p, int64_t n) {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return load(lanes);
}

static inline void partial_store(float* p, F32 v, int64_t n) {
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}

static inline F32 partial_load_bf16(const uint16_t* p, int64_t n) {
    uint16_t lanes[kLanes] = {};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return load_bf16(lanes);
}

static inline void partial_store_bf16(uint16_t* p, F32 v, int64_t n) {
    uint16_t lanes[kLanes];
    store_bf16(lanes, v);
    for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}

static inline F32 partial_load_i8(const int8_t* p, int64_t n) {
    int8_t lanes[kLanes] = {};
    for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
    return to_f32(load_i8(lanes));
}

static inline void partial_store_i8(int8_t* p, F32 v, int64_t n) {
    int8_t lanes[kLanes];
    store_i8(lanes, to_i32(v));
    for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
}

static inline void prefetch(const void* p) { __builtin_prefetch(p); }

// Before a loop over a tile: its vectors can only be registers when every index is known.
#define LEGATO_UNROLL _Pragma("GCC unroll 16")
