// Rotary position embedding, arXiv:2104.09864, together with the write of keys and values to their pages.
#pragma once

#include "kv_pages.h"
#include "products/quant.h"

// Turns the pairs (i, i + half) of a head by the angles of its position; dimensions from 2 * half on stay.
static void rotate_head(const float* x, const float* cos, const float* sin, int64_t half, int64_t head_dim, float* out) {
    for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t left = half - i;
        const F32 c = load_up_to(cos + i, left), s = load_up_to(sin + i, left);
        const F32 low = load_up_to(x + i, left), high = load_up_to(x + half + i, left);
        store_up_to(out + i, fma(low, c, neg(mul(high, s))), left);
        store_up_to(out + half + i, fma(high, c, mul(low, s)), left);
    }
    for (int64_t i = 2 * half; i < head_dim; ++i) out[i] = x[i];
}

// One head of one token as the store keeps it. Those of int8 share a scale, which goes to scales[place].
template <typename T>
static void keep(const float* x, int64_t head_dim, float*, int64_t, T* out) {
    for (int64_t d = 0; d < head_dim; d += kLanes) store_up_to(out + d, load_up_to(x + d, head_dim - d), head_dim - d);
}

template <>
void keep(const float* x, int64_t head_dim, float* scales, int64_t place, int8_t* out) {
    const float largest = largest_magnitude(x, head_dim);
    if (!(largest > kLeastMagnitude)) {
        std::memset(out, 0, static_cast<size_t>(head_dim));
        scales[place] = largest * 0.0f;
        return;
    }
    scales[place] = largest / 127.0f;
    const F32 reciprocal = set1(127.0f / largest);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        store_up_to(out + d, mul(load_up_to(x + d, head_dim - d), reciprocal), head_dim - d);
    }
}

// T: what the store holds: float, bfloat16 bits or int8.
template <typename T>
static void store_key(const float* x, const KVLayer& kv, int64_t place) {
    constexpr int64_t together = kDimsTogether<T>;
    const int64_t tile = has_key_tiles(kv) ? kLanes : 1;
    T kept[kMaxHeadDim];
    keep(x, kv.head_dim, kv.k_scales, place, kept);
    T* out = static_cast<T*>(kv.k) + place / tile * tile * kv.head_dim + place % tile * together;
    for (int64_t d = 0; d < kv.head_dim; d += together) {
        for (int64_t i = 0; i < together; ++i) out[d * tile + i] = kept[d + i];
    }
}

template <typename T>
static void rope_and_store_as(const float* qkv, const float* cos, const float* sin, int64_t half_dim, int64_t q_width,
                              const Step& step, const int32_t* request_of_row, const KVLayer& kv, float* q_out,
                              int64_t begin, int64_t end) {
    const int64_t dim = kv.head_dim, kv_width = kv.num_kv_heads * dim;
    for (int64_t row = begin; row < end; ++row) {
        const float* q = qkv + row * (q_width + 2 * kv_width);
        const float* k = q + q_width;
        const float* v = k + kv_width;
        const int64_t position = step.positions[row];
        const int64_t page = position / kv.page_size, in_page = position % kv.page_size;
        const float* c = cos + position * half_dim;
        const float* s = sin + position * half_dim;
        for (int64_t i = 0; i < q_width; i += dim) rotate_head(q + i, c, s, half_dim, dim, q_out + row * q_width + i);
        for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
            const int64_t place = place_of(step, request_of_row[row], page, in_page, head, kv);
            float turned[kMaxHeadDim];
            rotate_head(k + head * dim, c, s, half_dim, dim, turned);
            store_key<T>(turned, kv, place);
            keep(v + head * dim, dim, kv.v_scales, place, static_cast<T*>(kv.v) + place * dim);
        }
    }
}

static void rope_and_store(const float* qkv, const float* cos, const float* sin, int64_t half_dim, int64_t q_width,
                           const Step& step, const int32_t* request_of_row, const KVLayer& kv, float* q_out,
                           int64_t begin, int64_t end) {
    const auto run = kv.format == Format::BF16 ? rope_and_store_as<uint16_t>
                     : kv.format == Format::I8 ? rope_and_store_as<int8_t>
                                               : rope_and_store_as<float>;
    run(qkv, cos, sin, half_dim, q_width, step, request_of_row, kv, q_out, begin, end);
}
