// A step's attention cut into tasks, the same for every layer.
#pragma once

#include <cstdint>
#include <vector>

#include "../../ops.h"
#include "../memory.h"

namespace legato {

// Rows of one request go together, so that what they read is read once; fewer when there would be too few tasks for the
// threads. When there still are, the spans of a row that stands alone, as in decode, become tasks of their own, and what
// they sum to is merged after. The cut changes no bit: the sums of spans and their order are the same in any case.
class AttentionTasks {
 public:
    AttentionTasks(int64_t num_kv_heads, int num_threads) : num_kv_heads_(num_kv_heads), num_threads_(num_threads) {}

    // Memory for an operation whose K/V heads have `group` queries a row, and spans sum to so many floats.
    void reserve(int64_t group, int64_t part_floats, int64_t max_kv_len);

    void plan(const Step& step);

    const std::vector<AttentionTask>& tasks() const { return tasks_; }
    const std::vector<AttentionMerge>& merges() const { return merges_; }
    int64_t mean_positions() const { return num_positions_ / static_cast<int64_t>(tasks_.size()); }  // that a task reads

 private:
    int64_t wanted_tasks() const;
    int64_t num_tasks(const Step& step, int64_t task_rows) const;
    void add_tasks(const Step& step, int64_t request, int64_t head, int64_t task_rows);
    void split_lone_rows(const Step& step);

    int64_t num_kv_heads_;
    int num_threads_;
    int64_t max_rows_ = kTaskQueries;  // of a task
    int64_t part_floats_ = 0, max_spans_ = 0;
    int64_t num_positions_ = 0;
    Memory parts_;  // float32 [wanted_tasks, max_spans, part_floats]
    std::vector<AttentionTask> tasks_;
    std::vector<AttentionMerge> merges_;
};

}  // namespace legato
