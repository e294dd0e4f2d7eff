// Attention of each token to its request's positions up to its own, read from pages: PagedAttention,
// arXiv:2309.06180, with the softmax in parts of FlashAttention, arXiv:2205.14135.
//
// Positions are weighed a span at a time, and the spans' sums merged from the first to the last. Spans lie at fixed
// places from position 0 and sums within one have a fixed order, so that a row's bits depend on its own length alone.
// Reading a span once for several rows of a request and for the query heads that share a K/V head changes none of
// them, nor does it that several threads take a row's spans.
#pragma once

#include "attention_tiles.h"

// What queries sum to over one span or several, in memory for `capacity` queries; vectors may reach past the last.
struct SoftmaxSums {
    float* max;     // largest score
    float* sum;     // of weights, in units of 2^max; so are values
    float* values;  // [capacity, head_dim padded to lanes]

    SoftmaxSums(float* memory, int64_t capacity)
        : max(memory), sum(max + padded(capacity)), values(sum + padded(capacity)) {}

    static int64_t padded(int64_t capacity) { return padded_to_lanes(capacity) + kLanes; }
    static int64_t floats(int64_t capacity, int64_t head_dim) {
        return 2 * padded(capacity) + capacity * padded_to_lanes(head_dim);
    }
};

constexpr float kLog2e = 0x1.715476p0f;

static int64_t group_of(const AttentionArgs& args) { return args.num_heads / args.kv.num_kv_heads; }

static int64_t max_queries(const AttentionArgs& args) {
    return group_of(args) > kTaskQueries ? group_of(args) : kTaskQueries;
}

static int64_t attention_part_floats(const AttentionArgs& args) {
    return padded_to_lanes(SoftmaxSums::floats(group_of(args), args.kv.head_dim));
}

// The memory of one task, each piece at a multiple of a vector.
struct AttentionScratch {
    float *strip, *q, *weights, *k_scales, *v_scales, *total, *part;
    int32_t *seen, *hidden;
    int64_t floats;

    AttentionScratch(float* memory, int64_t num_queries, int64_t head_dim) : floats(0) {
        const auto take = [&](int64_t count) {
            float* piece = memory ? memory + floats : nullptr;
            floats += (count + kGroup - 1) / kGroup * kGroup;
            return piece;
        };
        strip = take(kStrip * padded_to_lanes(head_dim));
        q = take(num_queries * head_dim);
        weights = take(num_queries * kSpan);
        k_scales = take(kSpan);
        v_scales = take(kSpan);
        total = take(SoftmaxSums::floats(num_queries, head_dim));
        part = take(SoftmaxSums::floats(num_queries, head_dim));
        seen = reinterpret_cast<int32_t*>(take(num_queries));
        hidden = reinterpret_cast<int32_t*>(take(num_queries));
    }
};

static int64_t attention_scratch_floats(const AttentionArgs& args) {
    return AttentionScratch(nullptr, max_queries(args), args.kv.head_dim).floats;
}

// ---- one span ---------------------------------------------------------------------------------------------------

template <typename T>
static void score_strip(const KVLayer& kv, const Strip& strip, const Queries& queries, int64_t first, int64_t start,
                        float* memory) {
    constexpr int64_t kTiles = kStrip / kLanes;
    const bool is_read_once = sizeof(T) == sizeof(float) || queries.count - first <= kTileQueries;
    if (has_key_tiles(kv) && is_read_once) {
        const T* tiles[kTiles];
        for (int64_t i = 0; i < kTiles; ++i) tiles[i] = static_cast<const T*>(kv.k) + strip.offsets[i * kLanes];
        return score(queries, first, tiles, start);
    }
    has_key_tiles(kv) ? load_key_tiles<T>(kv, strip, memory) : turn_keys<T>(kv, strip, memory);
    const float* tiles[kTiles];
    for (int64_t i = 0; i < kTiles; ++i) tiles[i] = memory + i * kLanes * kv.head_dim;
    score(queries, first, tiles, start);
}

template <typename T>
static void sum_strip(const KVLayer& kv, const Strip& strip, const Queries& queries, int64_t first, int64_t start,
                      float* memory) {
    const bool is_read_once = sizeof(T) == sizeof(float) || queries.count - first <= kTileQueries;
    if (is_read_once) return sum_values(queries, first, static_cast<const T*>(kv.v), strip.offsets, start);
    load_values<T>(kv, strip, memory);
    int64_t offsets[kStrip];
    for (int64_t p = 0; p < kStrip; ++p) offsets[p] = p * queries.width();
    sum_values(queries, first, static_cast<const float*>(memory), offsets, start);
}

// T: what the store holds: float, bfloat16 bits or int8.
template <typename T>
static void attend_span(const KVLayer& kv, const Step& step, const AttentionTask& task, int64_t span,
                        const Queries& queries, float* memory) {
    const int64_t begin = span * kSpan, len = queries.seen[queries.count - 1];
    Strip strips[kSpan / kStrip];
    int64_t first = 0;
    for (int64_t start = queries.start; start < len; start += kStrip) {
        Strip& strip = strips[start / kStrip];
        find_strip(step, task.request, task.head, begin + start, begin + len, kv, &strip);
        while (queries.seen[first] <= start) ++first;
        score_strip<T>(kv, strip, queries, first, start, memory);
    }
    for (int64_t i = 0; i < queries.count; ++i) finish_scores(queries, i);
    for (int64_t i = 0; i < queries.count; ++i) weigh(queries, i);
    first = 0;
    for (int64_t start = queries.start; start < len; start += kStrip) {
        while (queries.seen[first] <= start) ++first;
        sum_strip<T>(kv, strips[start / kStrip], queries, first, start, memory);
    }
}

// ---- several spans ----------------------------------------------------------------------------------------------

// total += part, for queries [first, count); part is used up.
static void merge(const SoftmaxSums& total, const SoftmaxSums& part, int64_t first, int64_t count, int64_t width) {
    for (int64_t i = first; i < count; i += kLanes) {
        const F32 old_max = load(total.max + i), part_max = load(part.max + i), new_max = max(old_max, part_max);
        const F32 old_factor = exp2(sub(old_max, new_max)), part_factor = exp2(sub(part_max, new_max));
        store(total.sum + i, fma(load(total.sum + i), old_factor, mul(load(part.sum + i), part_factor)));
        store(total.max + i, new_max);
        store(part.max + i, old_factor);
        store(part.sum + i, part_factor);
    }
    for (int64_t i = first; i < count; ++i) {
        const F32 old_factor = set1(part.max[i]), part_factor = set1(part.sum[i]);
        float* values = total.values + i * width;
        const float* added = part.values + i * width;
        for (int64_t d = 0; d < width; d += kLanes) {
            store(values + d, fma(load(values + d), old_factor, mul(load(added + d), part_factor)));
        }
    }
}

// Sums of nothing, to which merging adds a span's to the bit.
static void clear(const SoftmaxSums& total, int64_t first, int64_t count, int64_t width) {
    for (int64_t i = first; i < count; ++i) {
        total.max[i] = -kInfinity;
        total.sum[i] = 0.0f;
    }
    if (first < count) std::memset(total.values + first * width, 0, static_cast<size_t>((count - first) * width) * sizeof(float));
}

// The first span of which a window lets a request of `len` tokens see its end.
static int64_t first_span_seen(int64_t window, int64_t len) { return window && len > window ? (len - window) / kSpan : 0; }

// Undoes what load_half does to vectors of bfloat16.
static void put_in_order(float* out, int64_t head_dim) {
    for (int64_t d = 0; d < in_tiles(head_dim); d += 2 * kLanes) {
        float halves[2 * kLanes];
        std::memcpy(halves, out + d, sizeof halves);
        for (int64_t i = 0; i < kLanes; ++i) {
            out[d + 2 * i] = halves[i];
            out[d + 2 * i + 1] = halves[kLanes + i];
        }
    }
}

// The heads of one row, `first` their first query: values / sum.
static void write_row(const AttentionArgs& args, const SoftmaxSums& total, int64_t first, int64_t row, int64_t head) {
    const int64_t group = group_of(args), head_dim = args.kv.head_dim;
    float* out = args.out + (row * args.num_heads + head * group) * head_dim;
    for (int64_t i = first; i < first + group; ++i, out += head_dim) {
        const float* values = total.values + i * padded_to_lanes(head_dim);
        const F32 share = set1(1.0f / total.sum[i]);
        for (int64_t d = 0; d < head_dim; d += kLanes) store_up_to(out + d, mul(load(values + d), share), head_dim - d);
        if (args.kv.format == Format::BF16) put_in_order(out, head_dim);
    }
}

// Queries in units that make scores powers of two: [num_rows * group, head_dim].
static void load_queries(const AttentionArgs& args, const AttentionTask& task, float* out) {
    const int64_t row_width = args.num_heads * args.kv.head_dim, width = group_of(args) * args.kv.head_dim;
    const F32 scale = set1(args.scale * kLog2e);
    for (int64_t row = task.first_row; row < task.first_row + task.num_rows; ++row, out += width) {
        const float* q = args.q + row * row_width + task.head * width;
        for (int64_t i = 0; i < width; i += kLanes) store_up_to(out + i, mul(load_up_to(q + i, width - i), scale), width - i);
    }
}

static void load_scales(const KVLayer& kv, const Step& step, const AttentionTask& task, int64_t begin, int64_t end,
                        const AttentionScratch& scratch) {
    for_each_run(step, task.request, task.head, begin, end, kv, [&](int64_t p, int64_t place, int64_t len) {
        for (int64_t i = 0; i < len; ++i) scratch.k_scales[p + i] = kv.k_scales[place + i];
        for (int64_t i = 0; i < len; ++i) scratch.v_scales[p + i] = kv.v_scales[place + i];
    });
}

template <typename T>
static void attend(const AttentionArgs& args, const Step& step, const AttentionTask& task, float* memory) {
    const KVLayer& kv = args.kv;
    const int64_t group = group_of(args), capacity = max_queries(args), width = padded_to_lanes(kv.head_dim);
    const AttentionScratch scratch(memory, capacity, kv.head_dim);
    const SoftmaxSums total(scratch.total, capacity);
    const int64_t first_len = step.positions[task.first_row] + 1, last_len = first_len + task.num_rows - 1;
    const int64_t window = args.window ? args.window : last_len;
    int64_t num_begun = 0;  // queries whose total has begun, where a window lets each begin at a span of its own
    load_queries(args, task, scratch.q);
    for (int64_t span = larger(task.first_span, first_span_seen(args.window, first_len)); span < task.end_span; ++span) {
        const int64_t begin = span * kSpan, end = smaller(begin + kSpan, last_len);
        const int64_t first_row = first_len > begin ? 0 : begin + 1 - first_len;  // that sees the span
        const int64_t end_row = smaller(task.num_rows, begin + kSpan + window - first_len);
        const int64_t first = first_row * group, count = end_row * group;
        const SoftmaxSums part = task.parts  ? SoftmaxSums(task.parts + (span - task.first_span) * attention_part_floats(args), group)
                          : span == 0 && !args.window ? total
                                                      : SoftmaxSums(scratch.part, capacity);
        for (int64_t i = first; i < count; ++i) {
            scratch.seen[i] = static_cast<int32_t>(smaller(end, first_len + i / group) - begin);
        }
        if (args.window) {
            for (int64_t i = first; i < count; ++i) {
                scratch.hidden[i] = static_cast<int32_t>(larger(0, first_len + i / group - window - begin));
            }
            if (!task.parts) clear(total, num_begun, count, width);
            num_begun = count;
        }
        if (kv.format == Format::I8) load_scales(kv, step, task, begin, end, scratch);
        const Queries queries{count - first,
                              kv.head_dim,
                              scratch.q + first * kv.head_dim,
                              scratch.seen + first,
                              args.window ? scratch.hidden + first : nullptr,
                              args.window ? scratch.hidden[first] / kStrip * kStrip : 0,
                              args.cap * kLog2e,
                              kv.format == Format::I8 ? scratch.k_scales : nullptr,
                              kv.format == Format::I8 ? scratch.v_scales : nullptr,
                              scratch.weights,
                              part.max + first,
                              part.sum + first,
                              part.values + first * width};
        attend_span<T>(kv, step, task, span, queries, scratch.strip);
        if (!task.parts && (span > 0 || args.window)) merge(total, part, first, count, width);
    }
    if (task.parts) return;
    for (int64_t row = 0; row < task.num_rows; ++row) write_row(args, total, row * group, task.first_row + row, task.head);
}

static void attention(const AttentionArgs& args, const Step& step, const AttentionTask& task, float* scratch) {
    const auto run = args.kv.format == Format::BF16 ? attend<uint16_t>
                     : args.kv.format == Format::I8 ? attend<int8_t>
                                                    : attend<float>;
    run(args, step, task, scratch);
}

static void merge_attention(const AttentionArgs& args, const AttentionMerge& task) {
    const int64_t group = group_of(args), part_floats = attention_part_floats(args);
    const int64_t first = first_span_seen(args.window, task.position + 1);
    const SoftmaxSums total(task.parts + first * part_floats, group);
    for (int64_t i = first + 1; i < task.num_parts; ++i) {
        merge(total, SoftmaxSums(task.parts + i * part_floats, group), 0, group, padded_to_lanes(args.kv.head_dim));
    }
    write_row(args, total, 0, task.row, task.head);
}
