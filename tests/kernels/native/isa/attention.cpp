// Rotary embedding, the store of keys and values, and attention over it.
#include <algorithm>
#include <numeric>

#include "checks.h"

namespace legato {

namespace {

// The store holds the positions of each request up to len; attention is of those from `first` on.
struct Request {
    int64_t first, len;
};

constexpr Request kRequests[] = {{0, 70}, {250, 266}, {519, 520}, {0, 1}, {250, 256}};
constexpr int64_t kNumRequests = std::size(kRequests);
constexpr int64_t kMaxLen = 520;

struct Heads {
    int64_t num_heads, num_kv_heads, head_dim;

    int64_t q_width() const { return num_heads * head_dim; }
    int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
    std::string text() const {
        return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + "x" + std::to_string(head_dim);
    }
};

// How it scores, and how many pairs of a head are turned.
struct Kind {
    int64_t window;
    float cap;
    int64_t half_dim;

    std::string text() const { return window ? ", a window of " + std::to_string(window) + " and a cap" : ""; }
};

// A step over all positions of all requests, on pages in a random order.
struct AllRows {
    std::vector<int32_t> positions, request_of_row, starts, kv_lens, pages;
    int64_t num_pages;
    Step step{};

    explicit AllRows(int64_t page_size) {
        starts.push_back(0);
        for (int64_t request = 0; request < kNumRequests; ++request) {
            const auto len = static_cast<int32_t>(kRequests[request].len);
            for (int32_t position = 0; position < len; ++position) {
                positions.push_back(position);
                request_of_row.push_back(static_cast<int32_t>(request));
            }
            starts.push_back(starts.back() + len);
            kv_lens.push_back(len);
        }
        const auto max_pages = (kMaxLen + page_size - 1) / page_size;
        num_pages = kNumRequests * max_pages;
        pages.resize(static_cast<size_t>(num_pages));
        std::iota(pages.begin(), pages.end(), 0);
        std::shuffle(pages.begin(), pages.end(), std::mt19937(static_cast<uint32_t>(page_size)));
        step = {num_rows(),       kNumRequests,  0,              max_pages,    nullptr,
                positions.data(), starts.data(), kv_lens.data(), pages.data(), nullptr};
    }

    AllRows(const AllRows&) = delete;

    int64_t num_rows() const { return static_cast<int64_t>(positions.size()); }
};

struct Rotation {
    Floats cos, sin;  // [kMaxLen, half_dim]

    Rotation(int64_t half_dim, bool turns) {
        for (int64_t position = 0; position < kMaxLen; ++position) {
            for (int64_t i = 0; i < half_dim; ++i) {
                const double angle = turns ? static_cast<double>(position) * std::pow(1e4, -1.0 * i / half_dim) : 0;
                cos.push_back(static_cast<float>(std::cos(angle)));
                sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
    }
};

// The keys, values and turned queries of all rows, in the order of a set.
class Stored {
 public:
    Stored(const Kernels& kernels, const Heads& heads, Format format, int64_t page_size, const Floats& qkv,
           const Rotation& rotation, const Kind& kind)
        : kernels_(kernels), heads_(heads), rows_(page_size) {
        const auto places = static_cast<size_t>(rows_.num_pages * heads.num_kv_heads * page_size);
        const size_t number_bytes = format == Format::F32 ? 4 : format == Format::BF16 ? 2 : 1;
        k_.resize(places * static_cast<size_t>(heads.head_dim) * number_bytes);
        v_.resize(k_.size());
        k_scales_.resize(places);
        v_scales_.resize(places);
        q_.resize(static_cast<size_t>(rows_.num_rows() * heads.q_width()));
        const KVLayer kv{k_.data(), v_.data(), k_scales_.data(),   v_scales_.data(),
                         format,    page_size, heads.num_kv_heads, heads.head_dim};
        const auto store = [&](int64_t begin, int64_t end) {
            kernels.rope_and_store(qkv.data(), rotation.cos.data(), rotation.sin.data(), kind.half_dim, heads.q_width(),
                                   rows_.step, rows_.request_of_row.data(), kv, q_.data(), begin, end);
        };
        store(100, rows_.num_rows());
        store(0, 100);
        out_.resize(q_.size());
        const auto scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
        args_ = {q_.data(), out_.data(), heads.num_heads, scale, kind.window, kind.cap, kv};
        scratch_.resize(static_cast<size_t>(kernels.attention_scratch_floats(args_)));
    }

    Stored(const Stored&) = delete;

    const Floats& queries() const { return q_; }

    // Attention of each request's rows from its first on, so many of them in a task: [rows, q_width].
    Floats attend(int64_t task_rows) { return over_tasks([=](int64_t left) { return std::min(left, task_rows); }, false); }

    // The same of each row alone, its spans in tasks of their own.
    Floats attend_in_parts() { return over_tasks([](int64_t) { return 1; }, true); }

 private:
    template <typename NumRows>
    Floats over_tasks(const NumRows& num_rows, bool in_parts) {
        std::fill(out_.begin(), out_.end(), NAN);
        Floats computed;
        for (int64_t request = 0; request < kNumRequests; ++request) {
            const int64_t start = rows_.starts[static_cast<size_t>(request)], end = start + kRequests[request].len;
            for (int64_t row = start + kRequests[request].first; row < end; row += num_rows(end - row)) {
                for (int64_t head = 0; head < heads_.num_kv_heads; ++head) {
                    in_parts ? attend_parts(request, row, head) : attend_rows(request, row, num_rows(end - row), head);
                }
            }
            const auto* first = out_.data() + (start + kRequests[request].first) * heads_.q_width();
            computed.insert(computed.end(), first, static_cast<const float*>(out_.data()) + end * heads_.q_width());
        }
        return computed;
    }

    int64_t num_spans(int64_t row) const { return rows_.positions[static_cast<size_t>(row)] / kSpan + 1; }

    void attend_rows(int64_t request, int64_t row, int64_t num_rows, int64_t head) {
        std::fill(scratch_.begin(), scratch_.end(), NAN);
        kernels_.attention(args_, rows_.step, {request, row, num_rows, head, 0, num_spans(row + num_rows - 1), nullptr},
                           scratch_.data());
    }

    void attend_parts(int64_t request, int64_t row, int64_t head) {
        const auto part_floats = kernels_.attention_part_floats(args_);
        Floats parts(static_cast<size_t>(num_spans(row) * part_floats), NAN);
        for (int64_t span = num_spans(row) - 1; span >= 0; --span) {
            std::fill(scratch_.begin(), scratch_.end(), NAN);
            kernels_.attention(args_, rows_.step,
                               {request, row, 1, head, span, span + 1, parts.data() + span * part_floats}, scratch_.data());
        }
        kernels_.merge_attention(args_, {row, rows_.positions[static_cast<size_t>(row)], head, num_spans(row), parts.data()});
    }

    const Kernels& kernels_;
    Heads heads_;
    AllRows rows_;
    std::vector<std::byte> k_, v_;
    Floats k_scales_, v_scales_, q_, out_, scratch_;
    AttentionArgs args_{};
};

void check_heads(const Kernels& kernels, const Heads& heads, const Kind& kind, Format format, const char* format_name) {
    const auto what = std::string(kernels.name) + ", attention " + heads.text() + ", K/V in " + format_name + kind.text();
    Random random(static_cast<uint32_t>(heads.head_dim));
    const auto qkv = random.normals(AllRows(1).num_rows() * heads.qkv_width());
    // Turned numbers differ in their last bit between sets, and then a few would round to other 8 or 16 bits.
    const Rotation rotation(kind.half_dim, format == Format::F32);

    Stored plain(scalar_kernels(), heads, format, 16, qkv, rotation, kind);
    Stored stored(kernels, heads, format, 16, qkv, rotation, kind);
    check_near(stored.queries().data(), plain.queries().data(), plain.queries().size(), what + ": queries");
    const auto found = stored.attend(kTaskQueries / (heads.num_heads / heads.num_kv_heads));
    const auto wanted = plain.attend(1);
    const auto width = static_cast<size_t>(heads.q_width());
    for (size_t row = 0; row < wanted.size() / width; ++row) {
        check_near(found.data() + row * width, wanted.data() + row * width, width, what + ", row " + std::to_string(row));
    }

    check(same_bits(stored.attend(1), found), what + ": bits alone");
    check(same_bits(stored.attend(7), found), what + ": bits by sevens");
    check(same_bits(stored.attend_in_parts(), found), what + ": bits in parts");
    for (const int64_t page_size : {1, 6, 64, 520}) {
        check(same_bits(Stored(kernels, heads, format, page_size, qkv, rotation, kind).attend(5), found),
              what + ": bits on pages of " + std::to_string(page_size));
    }
}

}  // namespace

void check_attention(const Kernels& kernels) {
    for (const Heads& heads : {Heads{9, 3, 64}, Heads{2, 2, 8}, Heads{5, 1, 24}, Heads{7, 1, 72}}) {
        const Kind kind{0, 0, heads.head_dim / 2};
        check_heads(kernels, heads, kind, Format::F32, "f32");
        check_heads(kernels, heads, kind, Format::BF16, "bf16");
        check_heads(kernels, heads, kind, Format::I8, "int8");
    }
    for (const int64_t window : {1, 5, 64, 256, 300}) {
        check_heads(kernels, {9, 3, 64}, {window, 1.5f, 24}, Format::F32, "f32");
        check_heads(kernels, {4, 2, 16}, {window, 1.5f, 8}, Format::I8, "int8");
    }
}

}  // namespace legato
