// What logarithms of probabilities are made of: a row's largest logits and the sum of its exponentials.
#pragma once

#include "vector_math.h"

// The sum of e^(logit - largest), in doubles.
static double exp_sum(const float* logits, int64_t vocab, float largest) {
    const F32 lanes = to_f32(lane_ids());
    F64 sum{};
    for (int64_t i = 0; i < vocab; i += kLanes) {
        const int64_t left = vocab - i;
        const F32 weight = exp(sub(load_up_to(logits + i, left), set1(largest)));
        sum = add_wide(sum, select(less(lanes, set1(static_cast<float>(left))), weight, zero()));
    }
    return reduce_add(sum);
}

// The `count` largest logits, 1 to vocab of them, in falling order; of equal ones the lowest id first.
static void top_logits(const float* logits, int64_t vocab, int64_t count, int32_t* ids, float* values) {
    int64_t found = 0;
    for (int64_t begin = 0; begin < vocab; begin += kLanes) {
        const int64_t end = smaller(begin + kLanes, vocab);
        const F32 v = load_up_to(logits + begin, end - begin);
        if (found == count && !any(less(set1(values[count - 1]), v))) continue;  // as nearly always
        for (int64_t i = begin; i < end; ++i) {
            if (found == count && !(logits[i] > values[count - 1])) continue;
            int64_t place = found < count ? found++ : count - 1;
            for (; place > 0 && values[place - 1] < logits[i]; --place) {
                values[place] = values[place - 1];
                ids[place] = ids[place - 1];
            }
            values[place] = logits[i];
            ids[place] = static_cast<int32_t>(i);
        }
    }
}
