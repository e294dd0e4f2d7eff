// The contract between the tape, which knows models and steps, and the kernels of one instruction set.
//
// A kernel computes one part of one operation: rows or panels [begin, end). Which thread takes which part, and how
// large a part is, never changes a bit of the result: each output element is one sum whose order depends on its own
// row's shape alone. All pointers are raw, sizes are in elements unless their name says bytes, rows are contiguous.
#pragma once

#include <cstddef>
#include <cstdint>

namespace legato {

// How the weights of a product lie in memory before and after packing; `pack` turns the first into the second.
enum class Format : int32_t {
    F32 = 0,   // source: float32 [outputs, inputs]
    BF16 = 1,  // source: bfloat16 bits, uint16 [outputs, inputs]
    F16 = 2,   // source: IEEE half bits, uint16 [outputs, inputs]
    Q4 = 3,    // source: Groups of 32 along inputs: 4-bit unsigned q, value = q * scale + minimum (Q4_0, Q4_1)
    Q8 = 4,    // source: groups of 32 along inputs: int8 q, value = q * scale (Q8_0)
    I8 = 5,    // source: int8 [outputs, inputs], one scale an output
    Q5 = 6,    // source: as Q4, 5-bit q (Q5_0, Q5_1)
    Q6 = 7,    // source: groups of 32 along inputs: 6-bit q from -32 to 31, an int8 multiplier for each half of a group,
               // value = q * (scale * multiplier) (Q6_K)
};

// Functions of one number, in legato/program/ops.py: Activation.
enum class Activation : int32_t { Silu = 0, Gelu = 1, GeluTanh = 2, Relu = 3 };

constexpr int64_t kGroup = 32;  // inputs that share a scale

// Weights as the loader gives them. Unused pointers are null.
//   values     F32/BF16/F16/I8: [outputs, inputs]; Q8: int8 [outputs, inputs];
//              Q4, Q5, Q6: bytes [outputs, inputs / 32, 16, 20 or 26], as legato/backends/group_packing.py makes them
//   scales     of groups: float32 [outputs, inputs / 32], kept as halves, so halves to begin with; I8: float32 [outputs]
//   minimums   Q4, Q5: float32 [outputs, inputs / 32], likewise kept as halves
struct WeightSource {
    Format format;
    int64_t outputs, inputs;
    const void* values;
    const float* scales;
    const float* minimums;
};

// Weights in panels of this instruction set's own layout; made by pack, read by linear and unpack_row.
struct PackedWeight {
    Format format;
    int64_t outputs, inputs;
    const std::byte* data;
};

// What a product reads its rows of activations as.
enum class RowFormat { F32, BF16, I8 };

constexpr int64_t kRefinedShare = 2;  // one group of so many may be refined

// Rows as int8: x is about q * scale, and in a group that is refined about q * scale + fine_q * fine_scale.
//   q            int8 [rows, inputs]
//   scales       float32 [rows, inputs / 32]
//   sums         like scales: scale * (sum of the group's q), what a minimum is multiplied by
//   refined      int32 [rows, 1 + inputs / 64]: how many groups are refined, then which, ascending
//   fine_q       int8 [rows, inputs / 64, 32], of the groups in `refined`
//   fine_scales  float32 [rows, inputs / 64]
//   fine_sums    like fine_scales
//   offsets      int32 [rows, inputs / 16], for each half of a group two int16: -32 times the sum of those q whose place
//                has bit 1 clear, then of the others; null where no product reads it
//   fine_offsets int32 [rows, inputs / 64, 2], of the groups in `refined`
struct Int8Rows {
    int8_t* q;
    float* scales;
    float* sums;
    int32_t* refined;
    int8_t* fine_q;
    float* fine_scales;
    float* fine_sums;
    int32_t* offsets;
    int32_t* fine_offsets;
};

constexpr bool reads_offsets(Format format) { return format == Format::Q6; }

// Rows of activations, in the format that the product reads; the other pointers may be null.
//   values  float32 [rows, inputs]
//   halves  bfloat16 bits [rows, inputs], a zero after each row of an odd number
//   int8    with a scale a group, for quantised weights
//   first_row  of these `rows`, among more that lie there
struct Activations {
    int64_t rows, inputs;
    const float* values;
    const uint16_t* halves;
    Int8Rows int8;
    int64_t first_row = 0;
};

constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kSpan = 256;        // positions whose attention is summed together, from fixed places on
constexpr int64_t kTaskQueries = 96;  // of one task of attention at most, but for a single row with more

// Where the keys and values of one layer are. Their order within a page is the instruction set's own: see kv_pages.h.
//   format    F32, BF16 or I8
//   k, v      numbers of that format, head_dim for each token: [num_pages, num_kv_heads, page_size, head_dim] in all
//   k_scales, v_scales  I8: float32 [num_pages, num_kv_heads, page_size], what a token's numbers are multiplied by
struct KVLayer {
    void* k;
    void* v;
    float* k_scales;
    float* v_scales;
    Format format;
    int64_t page_size, num_kv_heads, head_dim;
};

// The index arrays of one step, as in legato/backends/backend.py: ForwardInputs.
struct Step {
    int64_t num_tokens, num_requests, num_samples, max_pages;
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* query_starts;
    const int32_t* kv_lens;
    const int32_t* page_table;
    const int32_t* sample_rows;
};

struct AttentionArgs {
    const float* q;  // [num_tokens, num_heads * head_dim]
    float* out;      // the same shape
    int64_t num_heads;
    float scale;
    int64_t window;  // positions that a token sees, its own and those before it; 0: all of them
    float cap;       // scores become cap * tanh(score / cap); 0: they stay
    KVLayer kv;
};

// One K/V head's queries of consecutive rows of one request, over spans [first_span, end_span).
//   parts  null when these are all spans, and the result goes to `out`. Otherwise, for one row, where the spans' sums
//          go, attention_part_floats each, for merge_attention.
struct AttentionTask {
    int64_t request, first_row, num_rows, head;
    int64_t first_span, end_span;
    float* parts;
};

// One row's K/V head whose spans are in parts.
struct AttentionMerge {
    int64_t row, position, head, num_parts;
    float* parts;
};

struct SampleArgs {
    float temperature, top_p, min_p;
    int32_t top_k;      // 0: every token
    double number;      // uniform in (0, 1): a pure function of (seed, position), made by the caller
};

// Everything that one instruction set computes. One table a set; dispatch.cpp picks one at load.
struct Kernels {
    const char* name;
    int64_t lanes;         // float32 lanes of a vector
    int64_t panel_width;   // outputs in a panel of packed weights

    // Bytes of a packed weight, and packing of panels [begin, end) into `packed` (64-byte aligned, zeroed).
    int64_t (*packed_bytes)(Format format, int64_t outputs, int64_t inputs);
    void (*pack)(const WeightSource& source, std::byte* packed, int64_t begin, int64_t end);

    // One output's weights as float32 [inputs]: a row of an embedding that shares its weights with a product.
    void (*unpack_row)(const PackedWeight& weight, int64_t output, float* out);

    // out[row, output] (+= when add) for all rows and the outputs of panels [begin, end); rows of out are out_stride
    // floats apart. bias, [outputs] or null, is added to the product before that.
    void (*linear)(const PackedWeight& weight, const Activations& x, const float* bias, float* out, int64_t out_stride,
                   bool add, int64_t begin, int64_t end);

    // What `linear` reads its rows as, with weights of this format.
    RowFormat (*row_format)(Format format);

    // Row-wise operations over rows [begin, end); widths are those of one row.
    void (*round_rows)(const float* x, int64_t width, uint16_t* halves, int64_t begin, int64_t end);
    void (*quantize)(const float* x, int64_t width, const Int8Rows& out, int64_t begin, int64_t end);
    void (*rms_norm)(const float* x, const float* weight, float eps, int64_t width, float* out, int64_t begin, int64_t end);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* out,
                       int64_t begin, int64_t end);
    // function of x [rows, width]; gated: of the first half of each row of x [rows, 2 * width], times the second
    void (*activate)(Activation function, bool is_gated, const float* x, int64_t width, float* out, int64_t begin,
                     int64_t end);
    // cap * tanh(x / cap); out may be x
    void (*soft_cap)(const float* x, float cap, int64_t width, float* out, int64_t begin, int64_t end);
    // Turns the heads of q (into q_out, [rows, q_width]) and of k, and writes k and v to the K/V store.
    // qkv is [rows, q_width + 2 * kv_width]; cos and sin are [max_position, half_dim]: of each head 2 * half_dim
    // dimensions are turned, what is left of it stays.
    void (*rope_and_store)(const float* qkv, const float* cos, const float* sin, int64_t half_dim, int64_t q_width, const Step& step,
                           const int32_t* request_of_row, const KVLayer& kv, float* q_out, int64_t begin, int64_t end);

    // `scratch` is the calling thread's own, attention_scratch_floats long.
    int64_t (*attention_scratch_floats)(const AttentionArgs& args);
    int64_t (*attention_part_floats)(const AttentionArgs& args);
    void (*attention)(const AttentionArgs& args, const Step& step, const AttentionTask& task, float* scratch);
    void (*merge_attention)(const AttentionArgs& args, const AttentionMerge& task);

    // The token of one row of logits [vocab], which it may overwrite; ties go to the lowest id; -1: not finite.
    int32_t (*argmax)(const float* logits, int64_t vocab);
    int32_t (*sample)(float* logits, int64_t vocab, const SampleArgs& args, float* scratch);  // scratch: [vocab]

    // The sum of e^(logit - largest), and the `count` >= 1 largest logits in falling order, of equal ones the lowest id
    // first: of one row of finite logits.
    double (*exp_sum)(const float* logits, int64_t vocab, float largest);
    void (*top_logits)(const float* logits, int64_t vocab, int64_t count, int32_t* ids, float* values);

    // The ceilings that a benchmark holds the others against: the sum of data[begin, end), and `rounds` of multiply-adds in
    // registers as products with weights of the format make them. Gives how many; `sink` gets what hangs on them all.
    float (*probe_read)(const float* data, int64_t begin, int64_t end);
    int64_t (*probe_multiply)(Format format, int64_t rounds, int32_t* sink);
};

const Kernels& scalar_kernels();
const Kernels& avx2_kernels();              // x86-64 with AVX2, FMA and F16C
const Kernels& avx512_kernels();            // AVX-512 F, BW, DQ, VL
const Kernels& avx512_vnni_bf16_kernels();  // the same with VNNI and BF16
const Kernels& neon_kernels();              // arm64 with dot products

}  // namespace legato
