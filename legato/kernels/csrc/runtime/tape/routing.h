// Which experts the rows of a step go to, and the rows of each expert one after the other: its routed rows.
#pragma once

#include <cstdint>
#include <vector>

#include "../memory.h"

namespace legato {

// Of one operation: experts that there are, and that a row goes to; whether its shares are made to sum to 1.
struct Routes {
    int64_t num_experts, top_k;
    bool is_normalized;
};

// One for all operations of a tape, which take turns: a row's experts and shares hang on its scores alone, and its
// routed rows are only places.
class Routing {
 public:
    explicit Routing(int64_t max_rows) : max_rows_(max_rows) {}

    void reserve(const Routes& routes);

    // For rows [begin, end) of scores [rows, num_experts]; any thread.
    void choose(const Routes& routes, const float* scores, int64_t begin, int64_t end);

    // What follows reads, given all rows of the step; one thread.
    void group(const Routes& routes, int64_t num_rows);

    const std::vector<int32_t>& used() const { return used_; }  // experts that any row goes to, ascending
    int64_t first(int64_t expert) const { return starts_[static_cast<size_t>(expert)]; }  // of its routed rows
    int64_t num_rows(int64_t expert) const { return first(expert + 1) - first(expert); }
    int64_t row(int64_t routed) const { return rows_.at<int32_t>()[routed]; }  // that a routed row is of

    // Of a row, [top_k]: its routed rows, and their shares, the highest first.
    const int32_t* places(const Routes& routes, int64_t row) const { return places_.at<int32_t>() + row * routes.top_k; }
    const float* shares(const Routes& routes, int64_t row) const { return shares_.at<float>() + row * routes.top_k; }

 private:
    int64_t max_rows_, max_routed_ = 0;
    Memory chosen_, places_, rows_;  // int32 [max_routed_]
    Memory shares_;                  // float32 [max_routed_]
    std::vector<int64_t> starts_, next_;
    std::vector<int32_t> used_;
};

}  // namespace legato
