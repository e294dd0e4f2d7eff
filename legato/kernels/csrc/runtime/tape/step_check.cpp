#include "step_check.h"

#include <stdexcept>
#include <string>

namespace legato {

namespace {

void require(bool holds, const char* name, int64_t found, const char* relation, int64_t limit) {
    if (holds) return;
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(found) + ", must be " + relation + " " +
                                std::to_string(limit));
}

void check_below(const char* name, const int32_t* values, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; ++i) {
        require(values[i] >= 0, name, values[i], "at least", 0);
        require(values[i] < limit, name, values[i], "below", limit);
    }
}

void check_request(const Step& step, int64_t request, const StepLimits& limits) {
    const int64_t begin = step.query_starts[request], end = step.query_starts[request + 1];
    require(begin <= end, "query_starts", end, "at least", begin);
    require(end <= step.num_tokens, "query_starts", end, "at most", step.num_tokens);
    const int64_t kv_len = step.kv_lens[request];
    require(kv_len >= 1, "kv_lens", kv_len, "at least", 1);
    require(kv_len <= step.max_pages * limits.page_size, "kv_lens", kv_len, "at most the tokens of a row of page_table,",
            step.max_pages * limits.page_size);
    check_below("positions", step.positions + begin, end - begin, kv_len);
    const int64_t num_pages = (kv_len + limits.page_size - 1) / limits.page_size;
    check_below("page_table", step.page_table + request * step.max_pages, num_pages, limits.num_pages);
}

}  // namespace

void check_step(const Step& step, const StepLimits& limits) {
    require(step.num_tokens >= 1, "the step's tokens", step.num_tokens, "at least", 1);
    require(step.num_tokens <= limits.max_tokens, "the step's tokens", step.num_tokens, "at most", limits.max_tokens);
    require(step.num_samples <= limits.max_samples, "the step's samples", step.num_samples, "at most", limits.max_samples);
    check_below("token_ids", step.token_ids, step.num_tokens, limits.vocab);
    check_below("positions", step.positions, step.num_tokens, limits.num_positions);
    check_below("sample_rows", step.sample_rows, step.num_samples, step.num_tokens);
    require(step.query_starts[0] == 0, "query_starts, first", step.query_starts[0], "equal to", 0);
    const int64_t last = step.query_starts[step.num_requests];
    require(last == step.num_tokens, "query_starts, last", last, "equal to the step's tokens,", step.num_tokens);
    for (int64_t request = 0; request < step.num_requests; ++request) check_request(step, request, limits);
}

}  // namespace legato
