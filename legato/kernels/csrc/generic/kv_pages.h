// Where the keys and values of a request's tokens lie in the pages of a layer's store, and how attention reads them.
//
// Within a page, a head's tokens follow one another. The values of a token lie together. The keys of kLanes tokens lie
// together, dimension by dimension (bfloat16: two by two), so that a vector holds one dimension of each and scores need
// no sum over lanes. Where pages would cut such a tile, the keys of a token lie together, and are turned when read.
#pragma once

#include "vector_math.h"

constexpr int kTileVectors = 4;  // of sums in registers
constexpr int64_t kStrip = 64;  // positions that are read together, so that they stay in the nearest cache

// Neighbouring dimensions of a token's key that lie together in a tile.
template <typename T>
constexpr int64_t kDimsTogether = sizeof(T) == 2 ? 2 : 1;

// Dimensions whose values are summed in tiles; what is left of a head goes a vector at a time.
static inline int64_t in_tiles(int64_t head_dim) { return head_dim - head_dim % (kTileVectors * kLanes); }

static inline bool has_key_tiles(const KVLayer& kv) { return kv.page_size % kLanes == 0; }

// Number of a token among those of all pages and heads, [num_pages, num_kv_heads, page_size].
static inline int64_t place_of(const Step& step, int64_t request, int64_t page, int64_t in_page, int64_t head,
                               const KVLayer& kv) {
    return (step.page_table[request * step.max_pages + page] * kv.num_kv_heads + head) * kv.page_size + in_page;
}

// Calls run(p, place, len) for each run of positions start + p that lie in one page, up to `end`.
template <typename Run>
static inline void for_each_run(const Step& step, int64_t request, int64_t head, int64_t start, int64_t end,
                                const KVLayer& kv, const Run& run) {
    int64_t page = start / kv.page_size, in_page = start % kv.page_size;
    for (int64_t p = 0; p < end - start; ++page, in_page = 0) {
        const int64_t len = smaller(end - start - p, kv.page_size - in_page);
        run(p, place_of(step, request, page, in_page, head, kv), len);
        p += len;
    }
}

// Where one head's values of a strip of positions begin; so do the tiles of keys at multiples of kLanes.
struct Strip {
    int64_t len;
    int64_t offsets[kStrip];  // elements into kv.k and kv.v; past the end some place of the store
};

static void find_strip(const Step& step, int64_t request, int64_t head, int64_t start, int64_t end, const KVLayer& kv,
                       Strip* strip) {
    strip->len = smaller(kStrip, end - start);
    for_each_run(step, request, head, start, start + strip->len, kv, [&](int64_t p, int64_t place, int64_t len) {
        for (int64_t i = 0; i < len; ++i) strip->offsets[p + i] = (place + i) * kv.head_dim;
    });
    for (int64_t p = strip->len; p < kStrip; ++p) strip->offsets[p] = strip->offsets[0];
}

// Keys of a strip as float32 tiles [kStrip / kLanes, head_dim, kLanes].
template <typename T>
static void load_key_tiles(const KVLayer& kv, const Strip& strip, float* tiles) {
    const int64_t tile_len = kv.head_dim * kLanes;
    for (int64_t p = 0; p < strip.len; p += kLanes, tiles += tile_len) {
        const T* tile = static_cast<const T*>(kv.k) + strip.offsets[p];
        for (int64_t i = 0; i < tile_len; i += 2 * kLanes) {
            store(tiles + i, load_half<0>(tile + i));
            store(tiles + i + kLanes, load_half<1>(tile + i));
        }
    }
}

// The same where the keys of a token lie together.
template <typename T>
static void turn_keys(const KVLayer& kv, const Strip& strip, float* tiles) {
    for (int64_t p = 0; p < strip.len; ++p) {
        const T* row = static_cast<const T*>(kv.k) + strip.offsets[p];
        float* tile = tiles + p / kLanes * kLanes * kv.head_dim + p % kLanes;
        for (int64_t d = 0; d < kv.head_dim; d += kLanes) {
            float lanes[kLanes];
            store(lanes, load_up_to(row + d, kv.head_dim - d));
            for (int64_t i = 0; i < smaller(kLanes, kv.head_dim - d); ++i) tile[(d + i) * kLanes] = lanes[i];
        }
    }
}

// Values of a strip as float32 [kStrip, head_dim padded to lanes]; those in tiles by halves, see load_half.
template <typename T>
static void load_values(const KVLayer& kv, const Strip& strip, float* values) {
    for (int64_t p = 0; p < strip.len; ++p, values += padded_to_lanes(kv.head_dim)) {
        const T* row = static_cast<const T*>(kv.v) + strip.offsets[p];
        int64_t d = 0;
        for (; d < in_tiles(kv.head_dim); d += 2 * kLanes) {
            store(values + d, load_half<0>(row + d));
            store(values + d + kLanes, load_half<1>(row + d));
        }
        for (; d < kv.head_dim; d += kLanes) store(values + d, load_up_to(row + d, kv.head_dim - d));
    }
}
