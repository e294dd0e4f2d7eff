// Rotary position embedding, arXiv:2104.09864, together with the write of keys and values to their pages.
#pragma once

#include "kv_pages.h"
#include "vector_math.h"

// Turns the pairs (i, i + head_dim / 2) of each head of x [width] by the angles of its position.
template <typename T>
static void rotate_heads(const float* x, const float* cos, const float* sin, int64_t width, int64_t head_dim, T* out) {
    const int64_t half = head_dim / 2;
    for (int64_t head = 0; head < width; head += head_dim) {
        for (int64_t i = 0; i < half; i += kLanes) {
            const int64_t left = half - i;
            const F32 c = load_up_to(cos + i, left), s = load_up_to(sin + i, left);
            const F32 low = load_up_to(x + head + i, left), high = load_up_to(x + head + half + i, left);
            store_up_to(out + head + i, fma(low, c, neg(mul(high, s))), left);
            store_up_to(out + head + half + i, fma(high, c, mul(low, s)), left);
        }
    }
}

template <typename T>
static void store_row(const float* x, int64_t width, T* out) {
    for (int64_t i = 0; i < width; i += kLanes) store_up_to(out + i, load_up_to(x + i, width - i), width - i);
}

// T: what the store holds, float or bfloat16 bits.
template <typename T>
static void rope_and_store_as(const float* qkv, const float* cos, const float* sin, int64_t q_width, const Step& step,
                              const int32_t* request_of_row, const KVLayer& kv, float* q_out, int64_t begin,
                              int64_t end) {
    const int64_t kv_width = kv.num_kv_heads * kv.head_dim;
    for (int64_t row = begin; row < end; ++row) {
        const float* q = qkv + row * (q_width + 2 * kv_width);
        const float* k = q + q_width;
        const float* v = k + kv_width;
        const int64_t angles = step.positions[row] * (kv.head_dim / 2);
        const int64_t stored = token_offset(step, request_of_row[row], step.positions[row], kv);
        rotate_heads(q, cos + angles, sin + angles, q_width, kv.head_dim, q_out + row * q_width);
        rotate_heads(k, cos + angles, sin + angles, kv_width, kv.head_dim, static_cast<T*>(kv.k) + stored);
        store_row(v, kv_width, static_cast<T*>(kv.v) + stored);
    }
}

static void rope_and_store(const float* qkv, const float* cos, const float* sin, int64_t q_width, const Step& step,
                           const int32_t* request_of_row, const KVLayer& kv, float* q_out, int64_t begin, int64_t end) {
    const auto run = kv.is_bf16 ? rope_and_store_as<uint16_t> : rope_and_store_as<float>;
    run(qkv, cos, sin, q_width, step, request_of_row, kv, q_out, begin, end);
}
