// Where the keys and values of a request's tokens lie in the pages of a layer's store, and how attention reads them:
// a span of positions at a time, in float32, whatever the store holds and however the pages cut it.
#pragma once

#include "vector_math.h"

constexpr int64_t kSpan = 64;  // positions

// Element of kv.k and kv.v at which the heads of the token at `position` start; heads follow one another.
static inline int64_t token_offset(const Step& step, int64_t request, int64_t position, const KVLayer& kv) {
    const int64_t page = step.page_table[request * step.max_pages + position / kv.page_size];
    return (page * kv.page_size + position % kv.page_size) * kv.num_kv_heads * kv.head_dim;
}

// Keys of a span as float32 [head_dim, kSpan]: vectors along positions need no sum over their lanes.
template <typename T>
static void load_keys(const T* k, const int64_t* offsets, int64_t span_len, int64_t head_dim, float* keys) {
    constexpr bool is_bf16 = sizeof(T) == 2;
    constexpr int64_t kDims = is_bf16 ? 2 * kLanes : kLanes;  // in a vector of words
    for (int64_t p = 0; p < span_len; p += kLanes) {
        const std::byte* rows[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {  // past the end the last one again
            rows[i] = reinterpret_cast<const std::byte*>(k + offsets[smaller(p + i, span_len - 1)]);
        }
        int64_t d = 0;
        for (; d + kDims <= head_dim; d += kDims) {
            I32 words[kLanes];
            load_transposed(rows, d * static_cast<int64_t>(sizeof(T)), words);
            for (int64_t i = 0; i < kLanes; ++i) {
                if constexpr (is_bf16) {
                    store(keys + (d + 2 * i) * kSpan + p, as_f32(shift_left<16>(words[i])));
                    store(keys + (d + 2 * i + 1) * kSpan + p, as_f32(bit_and(words[i], set1(int32_t{-0x10000}))));
                } else {
                    store(keys + (d + i) * kSpan + p, as_f32(words[i]));
                }
            }
        }
        for (; d < head_dim; d += kLanes) {  // fewer dimensions than a vector of words
            for (int64_t i = 0; i < kLanes; ++i) {
                float lanes[kLanes];
                const T* row = reinterpret_cast<const T*>(rows[i]);
                store(lanes, load_up_to(row + d, head_dim - d));
                for (int64_t j = 0; j < smaller(kLanes, head_dim - d); ++j) keys[(d + j) * kSpan + p + i] = lanes[j];
            }
        }
    }
}

// Values of a span as float32 [kSpan, head_dim padded to lanes].
template <typename T>
static void load_values(const T* v, const int64_t* offsets, int64_t span_len, int64_t head_dim, float* values) {
    for (int64_t p = 0; p < span_len; ++p) {
        for (int64_t d = 0; d < head_dim; d += kLanes) {
            store(values + p * padded_to_lanes(head_dim) + d, load_up_to(v + offsets[p] + d, head_dim - d));
        }
    }
}
