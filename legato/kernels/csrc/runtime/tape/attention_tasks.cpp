#include "attention_tasks.h"

#include <algorithm>

namespace legato {

namespace {

constexpr int64_t kTasksPerThread = 4;  // fewer would leave some threads waiting for the last one
constexpr int64_t kFewRows = 8;         // tasks of fewer would read more than they compute

int64_t pieces(int64_t len, int64_t piece_len) { return (len + piece_len - 1) / piece_len; }

}  // namespace

int64_t AttentionTasks::wanted_tasks() const { return num_threads_ == 1 ? 0 : kTasksPerThread * num_threads_; }

void AttentionTasks::reserve(int64_t group, int64_t part_floats, int64_t max_kv_len) {
    max_rows_ = std::min(max_rows_, std::max<int64_t>(1, kTaskQueries / group));
    part_floats_ = std::max(part_floats_, part_floats);
    max_spans_ = std::max(max_spans_, pieces(max_kv_len, kSpan));
    parts_ = Memory(wanted_tasks() * max_spans_ * part_floats_ * static_cast<int64_t>(sizeof(float)));
}

void AttentionTasks::plan(const Step& step) {
    auto task_rows = max_rows_;
    while (task_rows / 2 >= kFewRows && num_tasks(step, task_rows) < wanted_tasks()) task_rows /= 2;
    tasks_.clear();
    merges_.clear();
    num_positions_ = 0;
    for (int64_t request = 0; request < step.num_requests; ++request) {
        for (int64_t head = 0; head < num_kv_heads_; ++head) add_tasks(step, request, head, task_rows);
    }
    if (static_cast<int64_t>(tasks_.size()) < wanted_tasks()) split_lone_rows(step);
}

int64_t AttentionTasks::num_tasks(const Step& step, int64_t task_rows) const {
    int64_t blocks = 0;
    for (int64_t request = 0; request < step.num_requests; ++request) {
        blocks += pieces(step.query_starts[request + 1] - step.query_starts[request], task_rows);
    }
    return blocks * num_kv_heads_;
}

// Rows after rows, not heads after heads: a head's keys and values are then still in a near cache.
void AttentionTasks::add_tasks(const Step& step, int64_t request, int64_t head, int64_t task_rows) {
    const int64_t end = step.query_starts[request + 1];
    for (int64_t row = step.query_starts[request]; row < end; row += task_rows) {
        const int64_t num_rows = std::min(task_rows, end - row), kv_len = step.positions[row] + num_rows;
        tasks_.push_back({request, row, num_rows, head, 0, pieces(kv_len, kSpan), nullptr});
        num_positions_ += kv_len;
    }
}

void AttentionTasks::split_lone_rows(const Step& step) {
    std::vector<AttentionTask> whole;
    whole.swap(tasks_);
    auto* parts = parts_.at<float>();
    for (auto task : whole) {
        const auto num_spans = task.end_span;
        if (task.num_rows > 1 || num_spans == 1) {
            tasks_.push_back(task);
            continue;
        }
        merges_.push_back({task.first_row, step.positions[task.first_row], task.head, num_spans, parts});
        for (int64_t span = 0; span < num_spans; ++span, parts += part_floats_) {
            task.first_span = span;
            task.end_span = span + 1;
            task.parts = parts;
            tasks_.push_back(task);
        }
    }
}

}  // namespace legato
