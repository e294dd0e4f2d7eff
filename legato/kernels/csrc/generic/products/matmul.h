// Products with packed weights: out[row, output] = sum over k of x[row, k] * weight[output, k].
//
// A tile is up to row_tile(format) rows of one panel, its sums in registers, so that weights are loaded and unpacked once for
// all its rows. Every element is summed over k in order by the same operations, whatever the tile's height:
//   F32, F16, BF16   sum = fma(w, x, sum)
//   BF16, kDotsBf16  pairs of inputs, as the instruction adds them (subnormals count as zeros); x is rounded to bfloat16
//   Q4, Q5           for each group of 32: sum = fma(dot, w_scale * x_scale, sum), then sum = fma(minimum, x_sum, sum);
//                    dot is the exact integer sum of products
//   Q8, Q6           the same without a minimum; in Q6 each half's integer sum is multiplied before they are added
//   I8               for each group: sum = fma(dot, x_scale, sum); at the end sum * w_scale
// Refined groups of a row (see Int8Rows) are added once more after all groups, with what they lacked.
#pragma once

#include "pack.h"
#include "row_format.h"

// Rows of the highest tile. 6 rows make 12 sums, which hide the latency of fma and fit 16 registers with what they are
// made of. A group has integer sums as well: with 16 registers 4 rows are faster than 6, which spill.
constexpr int row_tile(Format format) { return is_grouped(format) && kRegisters < 32 ? 4 : 6; }
constexpr int64_t kRowBlockBytes = 128 << 10;  // rows that panel after panel reads stay in the second-level cache
constexpr int64_t kPrefetchBytes = 4096;       // how far ahead a low tile asks for weights

struct TileArgs {
    const std::byte* panel;
    const Activations& x;
    int64_t row;         // the tile's first
    float* out;          // its element at the panel's first output
    int64_t out_stride;  // from a row to the next
    int64_t width;       // outputs from the panel's first to the last
    const float* bias;   // of the panel's outputs, or null
    bool add;
};

template <int R>
struct Sums {
    F32 at[R][kPanelVectors];
};

// One group of some rows, from the first one's pointers on: see Int8Rows.
struct GroupOfRows {
    const int8_t* q;
    const float *scales, *sums;
    const int32_t* offsets;
    int64_t q_stride, stride;  // from a row to the next: of q, and of scales and sums; offsets are two a group
};

// Asks for the weights that lie kPrefetchBytes after p. A low tile waits for memory, and what the hardware fetches
// ahead by itself leaves bandwidth unused; a high one is busy with arithmetic.
template <int R>
static inline void prefetch_after(const std::byte* p, int64_t bytes) {
    if constexpr (R <= 4) {
        LEGATO_UNROLL for (int64_t i = 0; i < bytes; i += 64) prefetch(p + kPrefetchBytes + i);
    }
}

template <Format format>
static inline void load_weights(const std::byte* panel, int64_t k, F32 (&w)[kPanelVectors]) {
    if constexpr (format == Format::F32) {
        const float* p = reinterpret_cast<const float*>(panel) + k * kPanelWidth;
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) w[v] = load(p + v * kLanes);
    } else if constexpr (format == Format::F16) {
        const uint16_t* p = reinterpret_cast<const uint16_t*>(panel) + k * kPanelWidth;
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) w[v] = load_f16(p + v * kLanes);
    } else {
        const int32_t* p = reinterpret_cast<const int32_t*>(panel) + k * (kPanelWidth / 2);
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v += 2) {
            const I32 pair = load(p + v / 2 * kLanes);
            w[v] = as_f32(shift_left<16>(pair));
            w[v + 1] = as_f32(bit_and(pair, set1(-0x10000)));
        }
    }
}

template <Format format, int R>
static inline void multiply_floats(const TileArgs& a, Sums<R>& sums) {
    const int64_t inputs = a.x.inputs;
    const float* x = a.x.values + a.row * inputs;
    for (int64_t k = 0; k < inputs; k++) {
        F32 w[kPanelVectors];
        load_weights<format>(a.panel, k, w);
        prefetch_after<R>(a.panel + k * input_bytes(format), input_bytes(format));
        LEGATO_UNROLL for (int r = 0; r < R; r++) {
            const F32 xk = set1(x[r * inputs + k]);
            LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) sums.at[r][v] = fma(w[v], xk, sums.at[r][v]);
        }
    }
}

// The four bytes at p in every lane: four int8 activations, or two bfloat16.
static inline I32 set1_word(const void* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return set1(word);
}

// The product by dot_bf16, which takes two inputs at a time; an odd last one meets a zero.
template <int R>
static inline void multiply_pairs(const TileArgs& a, Sums<R>& sums) {
    const int64_t width = halves_width(a.x.inputs);
    const uint16_t* x = a.x.halves + a.row * width;
    const auto* words = reinterpret_cast<const int32_t*>(a.panel);
    for (int64_t k = 0; k < width; k += 2, words += kPanelWidth) {
        prefetch_after<R>(reinterpret_cast<const std::byte*>(words), 4 * kPanelWidth);
        I32 w[kPanelVectors];
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) w[v] = load(words + v * kLanes);
        LEGATO_UNROLL for (int r = 0; r < R; r++) {
            const I32 pair = set1_word(x + r * width + k);
            LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
                sums.at[r][v] = dot_bf16(sums.at[r][v], w[v], pair);
            }
        }
    }
}

// sums += one word of weights of each output times one word of each row's activations.
template <int R, class Weights, class Sum>
static inline void dot_words(Sum (&sums)[R][kPanelVectors], const Weights (&w)[kPanelVectors], const int8_t* q,
                             int64_t q_stride) {
    LEGATO_UNROLL for (int r = 0; r < R; r++) {
        const I32 x = set1_word(q + r * q_stride);
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) sums[r][v] = dot(sums[r][v], w[v], x);
    }
}

// Four weights of each output: word i of the group, the low halves of its bytes or the high. `above` holds the bits of
// all of them that a nibble does not (Q5: of the group; Q6: of this half).
template <Format format, bool is_high, int i>
static inline U6Bytes small_weights(I32 word, I32 above) {
    const I32 nibbles = bit_and(is_high ? shift_right<4>(word) : word, set1(0x0f0f0f0f));
    if constexpr (format == Format::Q4) return {nibbles};
    constexpr int at = format == Format::Q6 ? 2 * i : is_high ? 4 + i : i;  // where they lie in a byte; they go to bit 4
    constexpr int32_t mask = format == Format::Q6 ? 0x30303030 : 0x10101010;
    if constexpr (at < 4) return {bit_or(nibbles, bit_and(shift_left<4 - at>(above), set1(mask)))};
    else return {bit_or(nibbles, bit_and(shift_right<at - 4>(above), set1(mask)))};
}

// sums += the four weights at word i of each output times as many activations.
template <Format format, bool is_high, int i, int R>
static inline void dot_small(U6Sum (&sums)[R][kPanelVectors], const int32_t* words, const I32 (&above)[kPanelVectors],
                             const int8_t* q, int64_t q_stride) {
    U6Bytes w[kPanelVectors];
    LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
        w[v] = small_weights<format, is_high, i>(load(words + i * kPanelWidth + v * kLanes), above[v]);
    }
    dot_words<R>(sums, w, q + 4 * i, q_stride);
}

// sums += 16 of a group's weights times as many activations.
template <Format format, bool is_high, int R>
static inline void dot_half(U6Sum (&sums)[R][kPanelVectors], const int32_t* words, const int8_t* q, int64_t q_stride) {
    I32 above[kPanelVectors] = {};
    if constexpr (format != Format::Q4) {
        constexpr int64_t word = format == Format::Q6 && is_high ? 5 : 4;
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) above[v] = load(words + word * kPanelWidth + v * kLanes);
    }
    const int8_t* x = q + (is_high ? kGroup / 2 : 0);
    dot_small<format, is_high, 0, R>(sums, words, above, x, q_stride);
    dot_small<format, is_high, 1, R>(sums, words, above, x, q_stride);
    dot_small<format, is_high, 2, R>(sums, words, above, x, q_stride);
    dot_small<format, is_high, 3, R>(sums, words, above, x, q_stride);
}

// The integer sums of one group of 4-bit weights.
template <int R>
static inline void dot_group_q4(const int32_t* words, const int8_t* q, int64_t q_stride,
                                I32 (&dots)[R][kPanelVectors]) {
    U6Sum sums[R][kPanelVectors] = {};
    dot_half<Format::Q4, false, R>(sums, words, q, q_stride);
    dot_half<Format::Q4, true, R>(sums, words, q, q_stride);
    LEGATO_UNROLL for (int r = 0; r < R; r++)
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) dots[r][v] = to_i32(sums[r][v]);
}

// The same of 5-bit weights: what a whole group comes to might not fit a U6Sum.
template <int R>
static inline void dot_group_q5(const int32_t* words, const int8_t* q, int64_t q_stride,
                                I32 (&dots)[R][kPanelVectors]) {
    U6Sum low[R][kPanelVectors] = {}, high[R][kPanelVectors] = {};
    dot_half<Format::Q5, false, R>(low, words, q, q_stride);
    LEGATO_UNROLL for (int r = 0; r < R; r++)
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) dots[r][v] = to_i32(low[r][v]);
    dot_half<Format::Q5, true, R>(high, words, q, q_stride);
    LEGATO_UNROLL for (int r = 0; r < R; r++)
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) dots[r][v] = add(dots[r][v], to_i32(high[r][v]));
}

// One half of a group of 6-bit weights as q + 32, and so from what the activations' offsets say on.
template <bool is_high, int R>
static inline void dot_half_q6(const int32_t* words, const GroupOfRows& x, U6Sum (&sums)[R][kPanelVectors]) {
    LEGATO_UNROLL for (int r = 0; r < R; r++) {
        const U6Sum offset = u6_sum(set1_word(x.offsets + r * 2 * x.stride + is_high));
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) sums[r][v] = offset;
    }
    dot_half<Format::Q6, is_high, R>(sums, words, x.q, x.q_stride);
}

// The sums of one group of 6-bit weights, each half's times its multipliers: below 2^24, so a float holds them exactly.
template <int R>
static inline void dot_group_q6(const int8_t* multipliers, const int32_t* words, const GroupOfRows& x,
                                I32 (&dots)[R][kPanelVectors]) {
    U6Sum low[R][kPanelVectors], high[R][kPanelVectors];
    dot_half_q6<false, R>(words, x, low);
    LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
        const I32 multiplier = load_i8(multipliers + v * kLanes);
        LEGATO_UNROLL for (int r = 0; r < R; r++) dots[r][v] = mul(to_i32(low[r][v]), multiplier);
    }
    dot_half_q6<true, R>(words, x, high);
    LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
        const I32 multiplier = load_i8(multipliers + kPanelWidth + v * kLanes);
        LEGATO_UNROLL for (int r = 0; r < R; r++) dots[r][v] = add(dots[r][v], mul(to_i32(high[r][v]), multiplier));
    }
}

// The integer sums of one group of 8-bit weights.
template <int R>
static inline void dot_group_i8(const int32_t* words, const int8_t* q, int64_t q_stride,
                                I32 (&dots)[R][kPanelVectors]) {
    LEGATO_UNROLL for (int r = 0; r < R; r++)
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) dots[r][v] = set1(0);
    LEGATO_UNROLL for (int i = 0; i < 8; i++) {
        I8Bytes w[kPanelVectors];
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
            w[v] = i8_bytes(load(words + i * kPanelWidth + v * kLanes));
        }
        dot_words<R>(dots, w, q + 4 * i, q_stride);
    }
}

// Adds one group's part to the sums: the integers times both scales, and what the minimums come to.
template <Format format, int R>
static inline void add_group(const I32 (&dots)[R][kPanelVectors], const uint16_t* head, const GroupOfRows& x,
                             Sums<R>& sums) {
    LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
        F32 w_scale, minimum;
        if constexpr (format != Format::I8) w_scale = load_f16(head + v * kLanes);
        if constexpr (has_minimums(format)) minimum = load_f16(head + kPanelWidth + v * kLanes);
        LEGATO_UNROLL for (int r = 0; r < R; r++) {
            F32& sum = sums.at[r][v];
            F32 scale = set1(x.scales[r * x.stride]);
            if constexpr (format != Format::I8) scale = mul(w_scale, scale);
            sum = fma(to_f32(dots[r][v]), scale, sum);
            if constexpr (has_minimums(format)) sum = fma(minimum, set1(x.sums[r * x.stride]), sum);
        }
    }
}

template <Format format, int R>
static inline void multiply_group(const std::byte* group, const GroupOfRows& x, Sums<R>& sums) {
    const auto* words = reinterpret_cast<const int32_t*>(group + group_head_bytes(format));
    I32 dots[R][kPanelVectors];
    if constexpr (format == Format::Q4) dot_group_q4<R>(words, x.q, x.q_stride, dots);
    else if constexpr (format == Format::Q5) dot_group_q5<R>(words, x.q, x.q_stride, dots);
    else if constexpr (format == Format::Q6) {
        dot_group_q6<R>(reinterpret_cast<const int8_t*>(group + 2 * kPanelWidth), words, x, dots);
    } else dot_group_i8<R>(words, x.q, x.q_stride, dots);
    add_group<format, R>(dots, reinterpret_cast<const uint16_t*>(group), x, sums);
}

// Adds what the refined groups of one row have beyond their first 8 bits.
template <Format format>
__attribute__((noinline)) static Sums<1> add_refined(const std::byte* panel, const Int8Rows& row, Sums<1> sums) {
    for (int32_t i = 0; i < row.refined[0]; i++) {
        const std::byte* group = panel + row.refined[1 + i] * group_bytes(format);
        const auto* offsets = reads_offsets(format) ? row.fine_offsets + 2 * i : nullptr;
        multiply_group<format, 1>(group, {row.fine_q + i * kGroup, row.fine_scales + i, row.fine_sums + i, offsets, 0, 0},
                                  sums);
    }
    return sums;
}

template <Format format, int R>
static inline void multiply_groups(const TileArgs& a, Sums<R>& sums) {
    const int64_t inputs = a.x.inputs, num_groups = inputs / kGroup;
    const Int8Rows x = int8_row(a.x.int8, inputs, a.row);
    const std::byte* group = a.panel;
    for (int64_t g = 0; g < num_groups; g++, group += group_bytes(format)) {
        prefetch_after<R>(group, group_bytes(format));
        const auto* offsets = reads_offsets(format) ? x.offsets + 2 * g : nullptr;
        multiply_group<format, R>(group, {x.q + g * kGroup, x.scales + g, x.sums + g, offsets, inputs, num_groups}, sums);
    }
    LEGATO_UNROLL for (int r = 0; r < R; r++) {
        const Int8Rows row = int8_row(x, inputs, r);
        if (row.refined[0] == 0) continue;
        Sums<1> of_row;
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) of_row.at[0][v] = sums.at[r][v];
        of_row = add_refined<format>(a.panel, row, of_row);
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) sums.at[r][v] = of_row.at[0][v];
    }
    if constexpr (format == Format::I8) {
        const auto* w_scales = reinterpret_cast<const float*>(group);
        LEGATO_UNROLL for (int r = 0; r < R; r++)
            LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++)
                sums.at[r][v] = mul(sums.at[r][v], load(w_scales + v * kLanes));
    }
}

// The sums of a tile whose panel reaches past the last output. Rare, so one copy of the code for all tiles.
__attribute__((noinline)) static void store_part(const F32 (*sums)[kPanelVectors], int64_t height, const TileArgs& a) {
    for (int64_t r = 0; r < height; r++) {
        for (int64_t begin = 0; begin < a.width; begin += kLanes) {
            float* out = a.out + r * a.out_stride + begin;
            const int64_t n = a.width - begin < kLanes ? a.width - begin : kLanes;
            F32 sum = sums[r][begin / kLanes];
            if (a.bias) sum = add(sum, partial_load(a.bias + begin, n));
            partial_store(out, a.add ? add(partial_load(out, n), sum) : sum, n);
        }
    }
}

template <int R>
static inline void store_sums(const Sums<R>& sums, const TileArgs& a) {
    if (a.width < kPanelWidth) {
        const Sums<R> copy = sums;  // so that the sums themselves have no address and stay in registers
        return store_part(copy.at, R, a);
    }
    LEGATO_UNROLL for (int r = 0; r < R; r++) {
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) {
            float* out = a.out + r * a.out_stride + v * kLanes;
            const F32 sum = a.bias ? add(sums.at[r][v], load(a.bias + v * kLanes)) : sums.at[r][v];
            store(out, a.add ? add(load(out), sum) : sum);
        }
    }
}

template <Format format, int R>
static inline void multiply_tile(const TileArgs& a) {
    Sums<R> sums;
    LEGATO_UNROLL for (int r = 0; r < R; r++)
        LEGATO_UNROLL for (int v = 0; v < kPanelVectors; v++) sums.at[r][v] = zero();
    if constexpr (is_grouped(format)) multiply_groups<format, R>(a, sums);
    else if constexpr (format == Format::BF16 && kDotsBf16) multiply_pairs<R>(a, sums);
    else multiply_floats<format, R>(a, sums);
    store_sums<R>(sums, a);
}

template <Format format, int R = row_tile(format)>
static inline void multiply_tile_of(int64_t height, const TileArgs& a) {
    if (height == R) return multiply_tile<format, R>(a);
    if constexpr (R > 1) multiply_tile_of<format, R - 1>(height, a);
}

// Rows of one panel, in tiles of nearly the same height: a low tile costs almost what a high one does.
template <Format format>
static inline void multiply_panel(TileArgs a, int64_t num_rows) {
    const int64_t num_tiles = (num_rows + row_tile(format) - 1) / row_tile(format);
    for (int64_t tile = 0; tile < num_tiles; tile++) {
        const int64_t height = num_rows / num_tiles + (tile < num_rows % num_tiles);
        multiply_tile_of<format>(height, a);
        a.row += height;
        a.out += height * a.out_stride;
    }
}

template <Format format>
static inline void linear_as(const PackedWeight& weight, const Activations& x, const float* bias, float* out,
                             int64_t out_stride, bool add, int64_t begin, int64_t end) {
    const int64_t row_bytes = x.inputs * bytes_of(row_format(format));
    const int64_t row_block = row_tile(format) * (1 + kRowBlockBytes / row_bytes / row_tile(format));
    for (int64_t row = 0; row < x.rows; row += row_block) {
        const int64_t num_rows = x.rows - row < row_block ? x.rows - row : row_block;
        for (int64_t panel = begin; panel < end; panel++) {
            const std::byte* weights = weight.data + panel * panel_bytes(format, x.inputs);
            const int64_t output = panel * kPanelWidth;
            float* first = out + row * out_stride + output;
            const float* panel_bias = bias ? bias + output : nullptr;
            const int64_t width = weight.outputs - output;
            multiply_panel<format>({weights, x, x.first_row + row, first, out_stride, width, panel_bias, add}, num_rows);
        }
    }
}

static inline void linear(const PackedWeight& weight, const Activations& x, const float* bias, float* out,
                          int64_t out_stride, bool add, int64_t begin, int64_t end) {
    switch (weight.format) {
        case Format::F32: return linear_as<Format::F32>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::BF16: return linear_as<Format::BF16>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::F16: return linear_as<Format::F16>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::Q4: return linear_as<Format::Q4>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::Q5: return linear_as<Format::Q5>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::Q6: return linear_as<Format::Q6>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::Q8: return linear_as<Format::Q8>(weight, x, bias, out, out_stride, add, begin, end);
        case Format::I8: return linear_as<Format::I8>(weight, x, bias, out, out_stride, add, begin, end);
    }
}
