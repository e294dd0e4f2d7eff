// What a thread can do at most: reading memory, and multiplying what is in registers. No operation of a model: the
// ceilings that a benchmark holds the kernels against.
#pragma once

#include "products/pack.h"

constexpr int64_t kProbeAheadBytes = 4096;  // that a read asks for in advance, as products do

// The sum of data[begin, end).
static inline float probe_read(const float* data, int64_t begin, int64_t end) {
    constexpr int64_t kStep = 8 * kLanes;
    F32 sums[8];
    LEGATO_UNROLL for (int v = 0; v < 8; v++) sums[v] = zero();
    int64_t i = begin;
    for (; i + kStep <= end; i += kStep) {
        LEGATO_UNROLL for (int64_t at = 0; at < 4 * kStep; at += 64) {
            prefetch(reinterpret_cast<const std::byte*>(data + i) + kProbeAheadBytes + at);
        }
        LEGATO_UNROLL for (int v = 0; v < 8; v++) sums[v] = add(sums[v], load(data + i + v * kLanes));
    }
    F32 sum = sums[0];
    LEGATO_UNROLL for (int v = 1; v < 8; v++) sum = add(sum, sums[v]);
    float total = reduce_add(sum);
    for (; i < end; i++) total += data[i];
    return total;
}

// Multiply-adds of a vector as products with weights of the format make them. What goes in is what the last ones gave, so
// that none can be left out.
template <Format format>
static inline I32 probe_integers(I32 x) {
    if constexpr (!has_nibbles(format)) return dot(set1(1), i8_bytes(set1(0x01fe03fc)), x);  // not to x: it would overflow
    U6Sum sum{};
    LEGATO_UNROLL for (int w = 1; w <= 8; w++) sum = dot(sum, U6Bytes{set1(0x01010101 * w)}, x);
    return to_i32(sum);
}

template <Format format, class Vector>
static inline Vector probe_floats(Vector x) {
    if constexpr (format == Format::BF16 && kDotsBf16) return dot_bf16(x, set1(0x3f003f00), as_i32(x));
    else return fma(x, set1(0.5f), set1(1.0f));
}

// Every chain is a variable of its own and so a register: an array would pass through memory.
template <Format format, class... Chain>
static inline int32_t probe_chains(int64_t rounds, Chain... chain) {
    I32 all = set1(0);
    if constexpr (is_grouped(format)) {
        for (int64_t round = 0; round < rounds; round++) ((chain = probe_integers<format>(chain)), ...);
        ((all = bit_or(all, chain)), ...);
    } else {
        for (int64_t round = 0; round < rounds; round++) ((chain = probe_floats<format>(chain)), ...);
        ((all = bit_or(all, as_i32(chain))), ...);
    }
    int32_t lanes[kLanes];
    store(lanes, all);
    return lanes[0];
}

template <Format format>
static inline int64_t probe_multiply_as(int64_t rounds, int32_t* sink) {
    const auto start = [](int i) {
        if constexpr (is_grouped(format)) return set1(0x01010101 * (i + 1));
        else return set1(1.0f / (i + 1));
    };
    // Ten, which do not wait for each other, hide a latency; they and their factors fit 16 registers.
    *sink = probe_chains<format>(rounds, start(0), start(1), start(2), start(3), start(4), start(5), start(6), start(7),
                                 start(8), start(9));
    constexpr int64_t kNumChains = 10;
    constexpr int64_t kPerLane = has_nibbles(format)                   ? 8 * 4
                                 : is_grouped(format)                  ? 4
                                 : format == Format::BF16 && kDotsBf16 ? 2
                                                                       : 1;
    return rounds * kNumChains * kLanes * kPerLane;
}

// Multiplies in registers; gives how many multiply-adds that were. `sink` gets a number that hangs on all of them.
static inline int64_t probe_multiply(Format format, int64_t rounds, int32_t* sink) {
    switch (format) {
        case Format::BF16: return probe_multiply_as<Format::BF16>(rounds, sink);
        case Format::Q4:
        case Format::Q5:
        case Format::Q6: return probe_multiply_as<Format::Q4>(rounds, sink);
        case Format::Q8:
        case Format::I8: return probe_multiply_as<Format::I8>(rounds, sink);
        default: return probe_multiply_as<Format::F32>(rounds, sink);
    }
}
