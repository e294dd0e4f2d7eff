#include "routing.h"

#include <algorithm>
#include <cmath>

namespace legato {

namespace {

// The experts with the highest scores, the highest first, of equal ones the first; any, where a score is no number.
void choose_experts(const Routes& routes, const float* scores, int32_t* chosen) {
    int64_t count = 0;
    for (int64_t expert = 0; expert < routes.num_experts; ++expert) {
        auto at = count;
        while (at > 0 && scores[expert] > scores[chosen[at - 1]]) --at;
        if (at == routes.top_k) continue;
        count = std::min(count + 1, routes.top_k);
        for (auto i = count - 1; i > at; --i) chosen[i] = chosen[i - 1];
        chosen[at] = static_cast<int32_t>(expert);
    }
}

// Their parts of the softmax of all scores; NaN if any score is infinite or NaN, so that what is made of them shows it.
void share_out(const Routes& routes, const float* scores, const int32_t* chosen, float* shares) {
    const auto highest = scores[chosen[0]];
    float sum = 0.0f;
    for (int64_t expert = 0; expert < routes.num_experts; ++expert) sum += std::exp(scores[expert] - highest);
    float chosen_sum = 0.0f;
    for (int64_t rank = 0; rank < routes.top_k; ++rank) {
        shares[rank] = std::exp(scores[chosen[rank]] - highest) / sum;
        chosen_sum += shares[rank];
    }
    if (!routes.is_normalized) return;
    for (int64_t rank = 0; rank < routes.top_k; ++rank) shares[rank] /= chosen_sum;
}

}  // namespace

void Routing::reserve(const Routes& routes) {
    const auto num_experts = static_cast<size_t>(routes.num_experts);
    starts_.resize(std::max(starts_.size(), num_experts + 1));
    next_.resize(starts_.size());
    used_.reserve(starts_.size());
    const auto routed = max_rows_ * routes.top_k;
    if (routed <= max_routed_) return;
    max_routed_ = routed;
    for (auto* memory : {&chosen_, &places_, &rows_, &shares_}) *memory = Memory(routed * 4);
}

void Routing::choose(const Routes& routes, const float* scores, int64_t begin, int64_t end) {
    for (auto row = begin; row < end; ++row) {
        const auto* of_row = scores + row * routes.num_experts;
        auto* chosen = chosen_.at<int32_t>() + row * routes.top_k;
        choose_experts(routes, of_row, chosen);
        share_out(routes, of_row, chosen, shares_.at<float>() + row * routes.top_k);
    }
}

void Routing::group(const Routes& routes, int64_t num_rows) {
    const auto num_routed = num_rows * routes.top_k;
    const auto* chosen = chosen_.at<int32_t>();
    std::fill(starts_.begin(), starts_.end(), 0);
    for (int64_t i = 0; i < num_routed; ++i) ++starts_[static_cast<size_t>(chosen[i]) + 1];
    used_.clear();
    for (int64_t expert = 0; expert < routes.num_experts; ++expert) {
        const auto at = static_cast<size_t>(expert);
        if (starts_[at + 1] > 0) used_.push_back(static_cast<int32_t>(expert));
        starts_[at + 1] += starts_[at];
        next_[at] = starts_[at];
    }
    for (int64_t i = 0; i < num_routed; ++i) {
        const auto place = next_[static_cast<size_t>(chosen[i])]++;
        places_.at<int32_t>()[i] = static_cast<int32_t>(place);
        rows_.at<int32_t>()[place] = static_cast<int32_t>(i / routes.top_k);
    }
}

}  // namespace legato
