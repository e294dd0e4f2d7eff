// One lane in plain C++: for machines with none of the other sets, and the plainest statement of what each name means.

using F32 = float;
using I32 = int32_t;
using Mask = bool;

constexpr int64_t kLanes = 1;
constexpr int kRegisters = 16;
constexpr bool kDotsBf16 = false;

static inline F32 as_f32(I32 v) {
    F32 f;
    std::memcpy(&f, &v, sizeof f);
    return f;
}

static inline I32 as_i32(F32 v) {
    I32 i;
    std::memcpy(&i, &v, sizeof i);
    return i;
}

static inline F32 zero() { return 0.0f; }
static inline F32 set1(float value) { return value; }
static inline I32 set1(int32_t value) { return value; }
static inline I32 lane_ids() { return 0; }

static inline F32 load(const float* p) { return *p; }

static inline I32 load(const int32_t* p) {
    I32 word;
    std::memcpy(&word, p, sizeof word);  // it may be four bytes or two bfloat16 that lie there
    return word;
}

static inline void store(float* p, F32 v) { *p = v; }
static inline void store(int32_t* p, I32 v) { *p = v; }
static inline I32 load_i8(const int8_t* p) { return *p; }
static inline void store_i8(int8_t* p, I32 v) { *p = static_cast<int8_t>(v); }

static inline F32 add(F32 a, F32 b) { return a + b; }
static inline F32 sub(F32 a, F32 b) { return a - b; }
static inline F32 mul(F32 a, F32 b) { return a * b; }
static inline F32 div(F32 a, F32 b) { return a / b; }
static inline F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }  // libm's is a slow call without the instruction
static inline F32 min(F32 a, F32 b) { return a < b ? a : b; }
static inline F32 max(F32 a, F32 b) { return a > b ? a : b; }
static inline F32 neg(F32 v) { return -v; }
static inline F32 abs(F32 v) { return as_f32(as_i32(v) & 0x7fffffff); }
static inline F32 sqrt(F32 v) { return __builtin_sqrtf(v); }
static inline F32 reduce_add(F32 v) { return v; }
static inline F32 reduce_max(F32 v) { return v; }

static inline I32 add(I32 a, I32 b) { return a + b; }
static inline I32 sub(I32 a, I32 b) { return a - b; }
static inline I32 mul(I32 a, I32 b) { return a * b; }
static inline I32 bit_and(I32 a, I32 b) { return a & b; }
static inline I32 bit_or(I32 a, I32 b) { return a | b; }
template <int n> static inline I32 shift_left(I32 v) { return static_cast<I32>(static_cast<uint32_t>(v) << n); }
template <int n> static inline I32 shift_right(I32 v) { return v >> n; }

static inline Mask less(F32 a, F32 b) { return a < b; }
static inline Mask equal(F32 a, F32 b) { return a == b; }
static inline Mask less(I32 a, I32 b) { return a < b; }
static inline Mask equal(I32 a, I32 b) { return a == b; }
static inline F32 select(Mask mask, F32 a, F32 b) { return mask ? a : b; }
static inline I32 select(Mask mask, I32 a, I32 b) { return mask ? a : b; }
static inline bool any(Mask mask) { return mask; }

static inline F32 round(F32 v) { return __builtin_rintf(v); }
static inline I32 to_i32(F32 v) { return static_cast<I32>(round(v)); }
static inline F32 to_f32(I32 v) { return static_cast<F32>(v); }

static inline F32 load_bf16(const uint16_t* p) { return as_f32(static_cast<I32>(static_cast<uint32_t>(*p) << 16)); }

static inline void store_bf16(uint16_t* p, F32 v) {
    uint32_t bits = static_cast<uint32_t>(as_i32(v));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    *p = static_cast<uint16_t>(v == v ? rounded : bits >> 16 | 0x40);
}

static inline F32 load_f16(const uint16_t* p) {
    uint32_t sign = (*p & 0x8000u) << 16, magnitude = *p & 0x7fffu;
    if (magnitude >= 0x7c00) return as_f32(static_cast<I32>(sign | 0x7f800000 | magnitude << 13));  // infinity, NaN
    // The half's exponent and mantissa in a float's place, then its bias made up for: exact, for subnormals too.
    F32 value = as_f32(static_cast<I32>(magnitude << 13)) * 0x1p112f;
    return sign ? -value : value;
}

using F64 = double;
static inline F64 add_wide(F64 sum, F32 v) { return sum + v; }
static inline double reduce_add(F64 sum) { return sum; }

struct U6Bytes {
    int32_t bytes;
};

struct U6Sum {
    int32_t total;
};

struct I8Bytes {
    int32_t bytes;
};

static inline int32_t dot_bytes(int32_t a, int32_t b) {
    int32_t sum = 0;
    for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return sum;
}

static inline U6Sum dot(U6Sum sum, U6Bytes w, I32 x) { return {sum.total + dot_bytes(w.bytes, x)}; }
static inline U6Sum u6_sum(I32 pairs) { return {shift_right<16>(shift_left<16>(pairs)) + shift_right<16>(pairs)}; }
static inline I32 to_i32(U6Sum sum) { return sum.total; }
static inline I8Bytes i8_bytes(I32 w) { return {w}; }
static inline I32 dot(I32 sum, I8Bytes w, I32 x) { return sum + dot_bytes(w.bytes, x); }
