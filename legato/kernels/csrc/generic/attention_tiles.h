// The sums of attention over a strip of positions, for queries that share a K/V head.
//
// A tile of kTileQueries by kTileVectors sums fills the registers together with what they are made of; smaller ones
// do what is left. Every sum goes from its first dimension or position to its last, whatever the tile.
#pragma once

#include "kv_pages.h"

constexpr int kTileQueries = kRegisters >= 32 ? 6 : 3;

// Queries on one K/V head over one span: heads of consecutive rows of one request, so that each sees all that the one
// before it sees. A strip begins at position `start` of the span.
struct Queries {
    int64_t count, head_dim;
    const float* q;         // [count, head_dim], in units that make scores powers of two
    const int32_t* seen;    // [count] positions of the span that each reaches to, 1 to kSpan
    const int32_t* hidden;  // [count] of these the first ones, which its window hides, fewer than it reaches; or null
    int64_t start;          // the strip where the first query's window begins: what lies before it is not read
    float cap;              // of scores, in their units; 0: none
    const float* k_scales;  // [kSpan] of int8 keys, else null
    const float* v_scales;  // [kSpan] of int8 values, else null
    float* weights;         // [count, kSpan], first the scores
    float* max;             // [count] largest score
    float* sum;             // [count] sum of weights
    float* values;          // [count, head_dim padded to lanes] sum of weights * values

    int64_t width() const { return padded_to_lanes(head_dim); }
};

// One of two dimensions of q [N, head_dim], times keys.
template <int kHalf, int N, typename T>
static inline void add_products(const float* q, int64_t head_dim, const T* const* tile, int64_t d,
                                F32 (&sums)[N][kTileVectors]) {
    LEGATO_UNROLL for (int j = 0; j < kTileVectors; ++j) {
        const F32 key = load_half<kHalf>(tile[j] + d * kLanes);
        LEGATO_UNROLL for (int n = 0; n < N; ++n) sums[n][j] = fma(set1(q[n * head_dim]), key, sums[n][j]);
    }
}

// Scores of queries [first, first + N) at the positions of a strip; those that a query does not see are not used.
// tiles: one for kLanes positions, as load_key_tiles makes them.
template <int N, typename T>
static void score_tile(const Queries& queries, int64_t first, const T* const* tiles, int64_t start) {
    const float* q = queries.q + first * queries.head_dim;
    const int64_t seen = smaller(kStrip, queries.seen[first + N - 1] - start);
    for (int64_t p = 0; p < seen; p += kTileVectors * kLanes) {
        const T* const* tile = tiles + p / kLanes;
        F32 sums[N][kTileVectors];
        for (auto& row : sums) {
            for (F32& sum : row) sum = zero();
        }
        for (int64_t d = 0; d < queries.head_dim; d += 2) {
            add_products<0>(q + d, queries.head_dim, tile, d, sums);
            add_products<1>(q + d + 1, queries.head_dim, tile, d, sums);
        }
        LEGATO_UNROLL for (int n = 0; n < N; ++n) {
            float* scores = queries.weights + (first + n) * kSpan + start + p;
            LEGATO_UNROLL for (int j = 0; j < kTileVectors; ++j) store(scores + j * kLanes, sums[n][j]);
        }
    }
}

// Scores of query i as they are compared: times what int8 keys are scaled by, capped, and none where it does not see.
static void finish_scores(const Queries& queries, int64_t i) {
    float* scores = queries.weights + i * kSpan;
    const int64_t seen = queries.seen[i], padded = padded_to_lanes(seen), start = queries.start;
    if (queries.k_scales) {
        for (int64_t p = start; p < padded; p += kLanes) store(scores + p, mul(load(scores + p), load(queries.k_scales + p)));
    }
    if (queries.cap != 0.0f) {
        for (int64_t p = start; p < padded; p += kLanes) store(scores + p, capped(load(scores + p), queries.cap));
    }
    if (queries.hidden) {
        for (int64_t p = start; p < queries.hidden[i]; ++p) scores[p] = -kInfinity;
    }
    for (int64_t p = seen; p < padded; ++p) scores[p] = -kInfinity;
    F32 largest = load(scores + start);
    for (int64_t p = start + kLanes; p < padded; p += kLanes) largest = max(largest, load(scores + p));
    queries.max[i] = reduce_max(largest);
}

// Scores of query i become weights, in units of 2^max.
static void weigh(const Queries& queries, int64_t i) {
    float* weights = queries.weights + i * kSpan;
    const int64_t padded = padded_to_lanes(queries.seen[i]);
    const F32 largest = set1(queries.max[i]);
    F32 sum = zero();
    for (int64_t p = queries.start; p < padded; p += kLanes) {
        const F32 weight = exp2(sub(load(weights + p), largest));
        store(weights + p, weight);
        sum = add(sum, weight);
    }
    queries.sum[i] = reduce_add(sum);
    if (queries.v_scales) {
        for (int64_t p = queries.start; p < padded; p += kLanes) {
            store(weights + p, mul(load(weights + p), load(queries.v_scales + p)));
        }
    }
}

// Vector j of a tile of several is whole; a tile of one may be a head's last, of `left` dimensions.
template <int V, typename T>
static inline F32 load_value(const T* row, int j, int64_t left) {
    if constexpr (V == 1) return load_up_to(row, left);
    else return j % 2 == 0 ? load_half<0>(row + j * kLanes) : load_half<1>(row + (j - 1) * kLanes);
}

// values += weights * what lies at base + offsets, over positions [begin, end) of a strip, for V vectors from dimension
// d; the sum begins with the first position that is read.
template <int N, int V, typename T>
static void value_tile(const Queries& queries, int64_t first, const T* base, const int64_t* offsets, int64_t start,
                       int64_t begin, int64_t end, int64_t d) {
    const float* weights = queries.weights + first * kSpan + start;
    float* out = queries.values + first * queries.width() + d;
    const int64_t width = queries.width(), left = queries.head_dim - d;
    F32 sums[N][V];
    LEGATO_UNROLL for (int n = 0; n < N; ++n) {
        LEGATO_UNROLL for (int j = 0; j < V; ++j) {
            sums[n][j] = start + begin == queries.start ? zero() : load(out + n * width + j * kLanes);
        }
    }
    for (int64_t p = begin; p < end; ++p) {
        const T* row = base + offsets[p] + d;
        LEGATO_UNROLL for (int j = 0; j < V; ++j) {
            const F32 value = load_value<V>(row, j, left);
            LEGATO_UNROLL for (int n = 0; n < N; ++n) sums[n][j] = fma(set1(weights[n * kSpan + p]), value, sums[n][j]);
        }
    }
    LEGATO_UNROLL for (int n = 0; n < N; ++n) {
        LEGATO_UNROLL for (int j = 0; j < V; ++j) store(out + n * width + j * kLanes, sums[n][j]);
    }
}

template <int N, typename T>
static void add_values(const Queries& queries, int64_t first, const T* base, const int64_t* offsets, int64_t start,
                       int64_t begin, int64_t end) {
    int64_t d = 0;
    for (; d < in_tiles(queries.head_dim); d += kTileVectors * kLanes) {
        value_tile<N, kTileVectors>(queries, first, base, offsets, start, begin, end, d);
    }
    for (; d < queries.head_dim; d += kLanes) value_tile<N, 1>(queries, first, base, offsets, start, begin, end, d);
}

// Queries [first, first + N): what all of them see together, then each what it sees alone.
template <int N, typename T>
static void add_values_seen(const Queries& queries, int64_t first, const T* base, const int64_t* offsets, int64_t start) {
    const int64_t seen_by_all = smaller(kStrip, queries.seen[first] - start);
    add_values<N>(queries, first, base, offsets, start, 0, seen_by_all);
    for (int64_t i = first + 1; i < first + N; ++i) {
        const int64_t seen = smaller(kStrip, queries.seen[i] - start);
        if (seen > seen_by_all) add_values<1>(queries, i, base, offsets, start, seen_by_all, seen);
    }
}

// All queries from `first` on.
template <int N = kTileQueries, typename T>
static void score(const Queries& queries, int64_t first, const T* const* tiles, int64_t start) {
    for (; first + N <= queries.count; first += N) score_tile<N>(queries, first, tiles, start);
    if constexpr (N > 1) {
        if (first < queries.count) score<N - 1>(queries, first, tiles, start);
    }
}

template <int N = kTileQueries, typename T>
static void sum_values(const Queries& queries, int64_t first, const T* base, const int64_t* offsets, int64_t start) {
    for (; first + N <= queries.count; first += N) add_values_seen<N>(queries, first, base, offsets, start);
    if constexpr (N > 1) {
        if (first < queries.count) sum_values<N - 1>(queries, first, base, offsets, start);
    }
}
