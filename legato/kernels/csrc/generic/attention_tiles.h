// The sums of attention over one span of positions, for queries that share a K/V head.
//
// A tile of kTileQueries by kTileVectors sums fills the registers together with what they are made of; smaller ones
// do what is left. Every sum goes from its first dimension or position to its last, whatever the tile.
#pragma once

#include "kv_pages.h"

constexpr int kTileQueries = kRegisters >= 32 ? 6 : 3;
constexpr int kTileVectors = 4;

// Queries on one K/V head and one span: query i is head i % group of row i / group of some rows of one request.
struct Queries {
    int64_t count, group, row_width, head_dim;
    int64_t first_seen;  // positions of the span that the first row sees, if it had no end: each row sees one more
    const float* q;      // of query 0; so too below
    float* out;          // sum of weights * values so far
    float* max;          // [count] largest score so far
    float* sum;          // [count] sum of weights so far
    float* correction;   // [count] what `out` must be scaled by, now that max has grown
    float* weights;      // [count, kSpan], first the scores

    int64_t offset(int64_t i) const { return i / group * row_width + i % group * head_dim; }
    int64_t seen(int64_t i) const { return smaller(kSpan, first_seen + i / group); }
};

// Scores of queries [first, first + N). Those of positions that a query does not see are not used.
template <int N>
static void score_tile(const Queries& queries, int64_t first, const float* keys, float scale) {
    const float* q[N];
    LEGATO_UNROLL for (int n = 0; n < N; ++n) q[n] = queries.q + queries.offset(first + n);
    for (int64_t p = 0; p < queries.seen(first + N - 1); p += kTileVectors * kLanes) {
        F32 sums[N][kTileVectors];
        for (auto& row : sums) {
            for (F32& sum : row) sum = zero();
        }
        for (int64_t d = 0; d < queries.head_dim; ++d) {
            LEGATO_UNROLL for (int j = 0; j < kTileVectors; ++j) {
                const F32 key = load(keys + d * kSpan + p + j * kLanes);
                LEGATO_UNROLL for (int n = 0; n < N; ++n) sums[n][j] = fma(set1(q[n][d]), key, sums[n][j]);
            }
        }
        LEGATO_UNROLL for (int n = 0; n < N; ++n) {
            float* scores = queries.weights + (first + n) * kSpan + p;
            LEGATO_UNROLL for (int j = 0; j < kTileVectors; ++j) store(scores + j * kLanes, mul(sums[n][j], set1(scale)));
        }
    }
}

// One step of the online softmax: scores of query i become weights, in units of e^max.
static void weigh(const Queries& queries, int64_t i) {
    float* weights = queries.weights + i * kSpan;
    const int64_t seen = queries.seen(i), padded = padded_to_lanes(seen);
    for (int64_t p = seen; p < padded; ++p) weights[p] = -kInfinity;

    const F32 old_max = set1(queries.max[i]);
    F32 largest = old_max;
    for (int64_t p = 0; p < padded; p += kLanes) largest = max(largest, load(weights + p));
    const F32 new_max = set1(reduce_max(largest));
    F32 sum = zero();
    for (int64_t p = 0; p < padded; p += kLanes) {
        const F32 weight = exp(sub(load(weights + p), new_max));
        store(weights + p, weight);
        sum = add(sum, weight);
    }
    const float correction = first_lane(exp(sub(old_max, new_max)));
    queries.correction[i] = correction;
    queries.sum[i] = queries.sum[i] * correction + reduce_add(sum);
    queries.max[i] = first_lane(new_max);
}

// Vectors of a tile of several are whole; a tile of one may be a head's last, of `left` dimensions.
template <int V, typename T>
static inline F32 load_of_tile(const T* p, int64_t left) {
    if constexpr (V > 1) return load_floats(p);
    else return load_up_to(p, left);
}

template <int V>
static inline void store_of_tile(float* p, F32 v, int64_t left) {
    if constexpr (V > 1) store(p, v);
    else store_up_to(p, v, left);
}

// out += weights * values over positions [begin, end), for V vectors from dimension d; corrects `out` at the first.
// T and offsets: how a span's values lie, as in load_values.
template <int N, int V, typename T>
static void value_tile(const Queries& queries, int64_t first, const T* values, const int64_t* offsets, int64_t begin,
                       int64_t end, int64_t d) {
    const float* weights = queries.weights + first * kSpan;
    const int64_t left = queries.head_dim - d;
    F32 sums[N][V];
    LEGATO_UNROLL for (int n = 0; n < N; ++n) {
        const float* out = queries.out + queries.offset(first + n) + d;
        const F32 correction = set1(begin == 0 ? queries.correction[first + n] : 1.0f);
        LEGATO_UNROLL for (int j = 0; j < V; ++j) sums[n][j] = mul(load_of_tile<V>(out + j * kLanes, left), correction);
    }
    for (int64_t p = begin; p < end; ++p) {
        const T* value = values + offsets[p] + d;
        LEGATO_UNROLL for (int j = 0; j < V; ++j) {
            const F32 v = load_of_tile<V>(value + j * kLanes, left);
            LEGATO_UNROLL for (int n = 0; n < N; ++n) sums[n][j] = fma(set1(weights[n * kSpan + p]), v, sums[n][j]);
        }
    }
    LEGATO_UNROLL for (int n = 0; n < N; ++n) {
        float* out = queries.out + queries.offset(first + n) + d;
        LEGATO_UNROLL for (int j = 0; j < V; ++j) store_of_tile<V>(out + j * kLanes, sums[n][j], left);
    }
}

template <int N, typename T>
static void add_values(const Queries& queries, int64_t first, const T* values, const int64_t* offsets, int64_t begin,
                       int64_t end) {
    int64_t d = 0;
    for (; d + kTileVectors * kLanes <= queries.head_dim; d += kTileVectors * kLanes) {
        value_tile<N, kTileVectors>(queries, first, values, offsets, begin, end, d);
    }
    for (; d < queries.head_dim; d += kLanes) value_tile<N, 1>(queries, first, values, offsets, begin, end, d);
}

// Weighted sum of queries [first, first + N): what all of them see together, then each what it sees alone.
template <int N, typename T>
static void sum_tile(const Queries& queries, int64_t first, const T* values, const int64_t* offsets) {
    const int64_t seen_by_all = queries.seen(first);
    add_values<N>(queries, first, values, offsets, 0, seen_by_all);
    for (int64_t i = first + 1; i < first + N; ++i) {
        if (queries.seen(i) > seen_by_all) add_values<1>(queries, i, values, offsets, seen_by_all, queries.seen(i));
    }
}

template <int N = kTileQueries>
static void score(const Queries& queries, const float* keys, float scale, int64_t first = 0) {
    for (; first + N <= queries.count; first += N) score_tile<N>(queries, first, keys, scale);
    if constexpr (N > 1) {
        if (first < queries.count) score<N - 1>(queries, keys, scale, first);
    }
}

template <int N = kTileQueries, typename T>
static void sum_values(const Queries& queries, const T* values, const int64_t* offsets, int64_t first = 0) {
    for (; first + N <= queries.count; first += N) sum_tile<N>(queries, first, values, offsets);
    if constexpr (N > 1) {
        if (first < queries.count) sum_values<N - 1>(queries, values, offsets, first);
    }
}
