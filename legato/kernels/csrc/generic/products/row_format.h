// What products read their rows of activations as, and rounding them to it (to int8: quant.h).
#pragma once

#include "pack.h"

constexpr RowFormat row_format(Format format) {
    if (is_grouped(format)) return RowFormat::I8;
    return format == Format::BF16 && kDotsBf16 ? RowFormat::BF16 : RowFormat::F32;
}

constexpr int64_t bytes_of(RowFormat format) {
    return format == RowFormat::I8 ? 1 : format == RowFormat::BF16 ? 2 : 4;
}

// Of a row in bfloat16: dot_bf16 reads pairs.
constexpr int64_t halves_width(int64_t width) { return width + width % 2; }

static void round_rows(const float* x, int64_t width, uint16_t* halves, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        const float* from = x + row * width;
        uint16_t* to = halves + row * halves_width(width);
        int64_t k = 0;
        for (; k + kLanes <= width; k += kLanes) store_bf16(to + k, load(from + k));
        if (k < width) partial_store_bf16(to + k, partial_load(from + k, width - k), halves_width(width) - k);
    }
}

// The rows from `row` on.
static inline Int8Rows int8_row(const Int8Rows& rows, int64_t width, int64_t row) {
    const int64_t num_groups = width / kGroup, most = num_groups / kRefinedShare;
    return {rows.q + row * width,
            rows.scales + row * num_groups,
            rows.sums + row * num_groups,
            rows.refined + row * (1 + most),
            rows.fine_q + row * most * kGroup,
            rows.fine_scales + row * most,
            rows.fine_sums + row * most,
            rows.offsets ? rows.offsets + row * num_groups * 2 : nullptr,
            rows.offsets ? rows.fine_offsets + row * most * 2 : nullptr};
}
