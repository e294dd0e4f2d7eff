#include "sampling.h"

#include <algorithm>

using nb::literals::operator""_a;

namespace legato {

namespace {

void check_list(const char* name, const Array<int32_t, 1>& starts, int64_t num_rows, size_t ids, size_t values) {
    require_size(name, starts.size(), num_rows + 1);
    for (int64_t row = 0; row < num_rows; ++row) {
        require(starts.data()[row] <= starts.data()[row + 1], std::string(name) + ": must not fall");
    }
    require(starts.data()[0] == 0, std::string(name) + ": must begin with 0");
    require_size(name, ids, starts.data()[num_rows]);
    require_size(name, values, starts.data()[num_rows]);
}

// Of a step's rows: the most that one asks for, at most the vocabulary and at least `least`.
int64_t checked_num_logprobs(const Array<int32_t, 1>& num_logprobs, int64_t num_rows, int64_t vocab, int32_t least) {
    require_size("num_logprobs", num_logprobs.size(), num_rows);
    int64_t most = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        const auto wanted = num_logprobs.data()[row];
        require(least <= wanted && wanted <= vocab,
                "num_logprobs: " + std::to_string(wanted) + ", must be at least " + std::to_string(least) +
                    " and at most the vocabulary's " + std::to_string(vocab));
        most = std::max<int64_t>(most, wanted);
    }
    return most;
}

// Logprobs of rows, to be filled and then owned by Python.
struct LogprobArrays {
    nb::ndarray<nb::numpy, double, nb::ndim<1>> own;
    nb::ndarray<nb::numpy, int32_t, nb::ndim<2>> top_ids;
    nb::ndarray<nb::numpy, double, nb::ndim<2>> top_logprobs;

    LogprobArrays(size_t num_rows, size_t max_logprobs)
        : own(new_array<double, 1>({num_rows})),
          top_ids(new_array<int32_t, 2>({num_rows, max_logprobs})),
          top_logprobs(new_array<double, 2>({num_rows, max_logprobs})) {}

    RowLogprobs rows() const {
        return {static_cast<int64_t>(top_ids.shape(1)), own.data(), top_ids.data(), top_logprobs.data()};
    }
};

nb::tuple sample_rows(
    Device& device, const nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>& logits,
    const Array<float, 1>& temperatures, const Array<int32_t, 1>& top_ks, const Array<float, 1>& top_ps,
    const Array<float, 1>& min_ps, const Array<double, 1>& numbers, const Array<int32_t, 1>& added_starts,
    const Array<int32_t, 1>& added_ids, const Array<float, 1>& added_values, const Array<double, 2>& penalties,
    const Array<int32_t, 1>& seen_starts, const Array<int32_t, 1>& seen_ids, const Array<int32_t, 1>& seen_counts,
    const Array<int32_t, 1>& num_logprobs, const Array<uint32_t, 2>& masks, const Array<int32_t, 1>& mask_rows) {
    const auto num_rows = static_cast<int64_t>(logits.shape(0)), vocab = static_cast<int64_t>(logits.shape(1));
    require_size("temperatures", temperatures.size(), num_rows);
    require_size("top_ks", top_ks.size(), num_rows);
    require_size("top_ps", top_ps.size(), num_rows);
    require_size("min_ps", min_ps.size(), num_rows);
    require_size("numbers", numbers.size(), num_rows);
    require_size("penalties", penalties.size(), num_rows * 3);
    check_list("added_starts", added_starts, num_rows, added_ids.size(), added_values.size());
    check_list("seen_starts", seen_starts, num_rows, seen_ids.size(), seen_counts.size());
    if (mask_rows.size() != 0) require_size("mask_rows", mask_rows.size(), num_rows);
    const auto max_logprobs = checked_num_logprobs(num_logprobs, num_rows, vocab, -1);
    const SamplingRows rows{num_rows,
                            vocab,
                            logits.data(),
                            temperatures.data(),
                            top_ks.data(),
                            top_ps.data(),
                            min_ps.data(),
                            numbers.data(),
                            added_starts.data(),
                            added_ids.data(),
                            added_values.data(),
                            penalties.data(),
                            seen_starts.data(),
                            seen_ids.data(),
                            seen_counts.data(),
                            static_cast<int64_t>(masks.shape(0)),
                            static_cast<int64_t>(masks.shape(1)),
                            masks.data(),
                            mask_rows.size() == 0 ? nullptr : mask_rows.data(),
                            num_logprobs.data()};
    auto tokens = new_array<int32_t, 1>({logits.shape(0)});
    LogprobArrays logprobs(logits.shape(0), static_cast<size_t>(max_logprobs));
    {
        nb::gil_scoped_release released;
        device.sampler.sample(rows, tokens.data(), logprobs.rows());
    }
    return nb::make_tuple(tokens, logprobs.own, logprobs.top_ids, logprobs.top_logprobs);
}

nb::tuple score_rows(Device& device, const Array<float, 2>& logits, const Array<int32_t, 1>& token_ids,
                     const Array<int32_t, 1>& num_logprobs) {
    const auto num_rows = static_cast<int64_t>(logits.shape(0)), vocab = static_cast<int64_t>(logits.shape(1));
    require_size("token_ids", token_ids.size(), num_rows);
    const auto max_logprobs = checked_num_logprobs(num_logprobs, num_rows, vocab, 0);
    LogprobArrays logprobs(logits.shape(0), static_cast<size_t>(max_logprobs));
    {
        nb::gil_scoped_release released;
        device.sampler.score({num_rows, vocab, logits.data(), token_ids.data(), num_logprobs.data()}, logprobs.rows());
    }
    return nb::make_tuple(logprobs.own, logprobs.top_ids, logprobs.top_logprobs);
}

}  // namespace

void bind_sampling(nb::class_<Device>& device) {
    device.def("sample_rows", &sample_rows, "logits"_a.noconvert(), "temperatures"_a.noconvert(), "top_ks"_a.noconvert(),
             "top_ps"_a.noconvert(), "min_ps"_a.noconvert(), "numbers"_a.noconvert(), "added_starts"_a.noconvert(),
             "added_ids"_a.noconvert(), "added_values"_a.noconvert(), "penalties"_a.noconvert(),
             "seen_starts"_a.noconvert(), "seen_ids"_a.noconvert(), "seen_counts"_a.noconvert(),
             "num_logprobs"_a.noconvert(), "masks"_a.noconvert(), "mask_rows"_a.noconvert())
        .def("score_rows", &score_rows, "logits"_a.noconvert(), "token_ids"_a.noconvert(),
             "num_logprobs"_a.noconvert());
}

}  // namespace legato
