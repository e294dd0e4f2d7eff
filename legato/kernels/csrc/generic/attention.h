// Attention of each token to its request's positions up to its own, read from pages: PagedAttention,
// arXiv:2309.06180, with the online softmax of arXiv:1805.02867.
//
// Positions are weighed a span at a time. Spans lie at fixed places from position 0 and sums within one have a fixed
// order, so that a row's bits depend on its own length alone. Reading a span once for several rows of a request, and
// for the query heads that share a K/V head, changes none of them.
#pragma once

#include "attention_tiles.h"
#include "kv_pages.h"

constexpr int64_t kBlockRows = 16;

// Consecutive tokens of one request, kBlockRows at most, and the K/V heads [first_head, end_head).
struct AttentionBlock {
    int64_t request, first_row, num_rows, first_head, end_head;
};

static int64_t attention_scratch_floats(const AttentionArgs& args, int64_t) {
    const int64_t all_queries = kBlockRows * args.num_heads, queries = all_queries / args.kv.num_kv_heads;
    return 2 * all_queries + queries * (1 + kSpan) + kSpan * padded_to_lanes(args.kv.head_dim);
}

// The block's queries on one K/V head, for the span from position `start`.
static Queries queries_of(const AttentionArgs& args, const AttentionBlock& block, int64_t head, int64_t first_seen,
                          float* scratch) {
    const int64_t group = args.num_heads / args.kv.num_kv_heads, max_queries = kBlockRows * group;
    const int64_t skipped = first_seen < 1 ? 1 - first_seen : 0;  // rows before the span
    Queries queries;
    queries.count = (block.num_rows - skipped) * group;
    queries.group = group;
    queries.head_dim = args.kv.head_dim;
    queries.row_width = args.num_heads * args.kv.head_dim;
    queries.first_seen = first_seen + skipped;
    const int64_t first = (block.first_row + skipped) * queries.row_width + head * group * queries.head_dim;
    queries.q = args.q + first;
    queries.out = args.out + first;
    queries.max = scratch + head * max_queries + skipped * group;
    queries.sum = queries.max + args.kv.num_kv_heads * max_queries;
    queries.correction = scratch + 2 * args.kv.num_kv_heads * max_queries;
    queries.weights = queries.correction + max_queries;
    return queries;
}

static void start_softmax(const Queries& queries) {
    for (int64_t i = 0; i < queries.count; ++i) {
        queries.max[i] = -kInfinity;
        queries.sum[i] = 0.0f;
        std::memset(queries.out + queries.offset(i), 0, queries.head_dim * sizeof(float));
    }
}

static void finish_softmax(const Queries& queries) {
    for (int64_t i = 0; i < queries.count; ++i) {
        float* out = queries.out + queries.offset(i);
        const F32 share = set1(1.0f / queries.sum[i]);
        for (int64_t d = 0; d < queries.head_dim; d += kLanes) {
            const int64_t left = queries.head_dim - d;
            store_up_to(out + d, mul(load_up_to(out + d, left), share), left);
        }
    }
}

// T: what the store holds, float or bfloat16 bits.
template <typename T>
static void attend_block(const AttentionArgs& args, const Step& step, const AttentionBlock& block, float* scratch) {
    const KVLayer& kv = args.kv;
    float* span = scratch + attention_scratch_floats(args, 0) - kSpan * padded_to_lanes(kv.head_dim);
    const int64_t first_len = step.positions[block.first_row] + 1, last_len = first_len + block.num_rows - 1;
    for (int64_t head = block.first_head; head < block.end_head; ++head) {
        start_softmax(queries_of(args, block, head, first_len, scratch));
    }
    for (int64_t start = 0; start < last_len; start += kSpan) {
        const int64_t span_len = smaller(kSpan, last_len - start);
        int64_t offsets[kSpan];
        for (int64_t p = 0; p < span_len; ++p) offsets[p] = token_offset(step, block.request, start + p, kv);
        for (int64_t head = block.first_head; head < block.end_head; ++head) {
            const Queries queries = queries_of(args, block, head, first_len - start, scratch);
            load_keys(static_cast<const T*>(kv.k) + head * kv.head_dim, offsets, span_len, kv.head_dim, span);
            score(queries, span, args.scale);
            for (int64_t i = 0; i < queries.count; ++i) weigh(queries, i);
            const T* v = static_cast<const T*>(kv.v) + head * kv.head_dim;
            if (queries.count <= kTileQueries) {  // nothing would read them twice
                sum_values(queries, v, offsets);
            } else {
                load_values(v, offsets, span_len, kv.head_dim, span);
                int64_t rows[kSpan];
                for (int64_t p = 0; p < span_len; ++p) rows[p] = p * padded_to_lanes(kv.head_dim);
                sum_values(queries, static_cast<const float*>(span), rows);
            }
        }
    }
    for (int64_t head = block.first_head; head < block.end_head; ++head) {
        finish_softmax(queries_of(args, block, head, first_len, scratch));
    }
}

// What the tasks from `task` on have in common: the rest of one row's heads, or whole rows of one request.
static AttentionBlock next_block(const int32_t* request_of_row, int64_t num_kv_heads, int64_t task, int64_t end) {
    const int64_t row = task / num_kv_heads, head = task % num_kv_heads, request = request_of_row[row];
    const int64_t whole_rows = smaller(kBlockRows, (end - task) / num_kv_heads);
    if (head > 0 || whole_rows == 0) return {request, row, 1, head, smaller(num_kv_heads, head + end - task)};
    int64_t num_rows = 1;
    while (num_rows < whole_rows && request_of_row[row + num_rows] == request) ++num_rows;
    return {request, row, num_rows, 0, num_kv_heads};
}

static void attention(const AttentionArgs& args, const Step& step, const int32_t* request_of_row, float* scratch,
                      int64_t begin, int64_t end) {
    const auto attend = args.kv.is_bf16 ? attend_block<uint16_t> : attend_block<float>;
    for (int64_t task = begin; task < end;) {
        const AttentionBlock block = next_block(request_of_row, args.kv.num_kv_heads, task, end);
        attend(args, step, block, scratch);
        task += block.num_rows * (block.end_head - block.first_head);
    }
}
