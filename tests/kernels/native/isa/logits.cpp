// From a row of logits to a token, and to the logarithms of probabilities.
#include <algorithm>

#include "checks.h"

namespace legato {

namespace {

constexpr int64_t kVocabs[] = {1, 3, 4, 5, 100, 1023, 4099};

Floats random_logits(int64_t vocab, Random& random) {
    auto logits = random.normals(vocab);
    for (auto& logit : logits) logit *= 4;
    return logits;
}

int32_t sample(const Kernels& kernels, Floats logits, const SampleArgs& args) {
    Floats scratch(logits.size(), NAN);
    return kernels.sample(logits.data(), static_cast<int64_t>(logits.size()), args, scratch.data());
}

void check_samples(const Kernels& kernels, int64_t vocab, Random& random) {
    constexpr SampleArgs kArgs[] = {{1, 1, 0, 0, 0},         {0.7f, 0.9f, 0, 0, 0},    {1.5f, 1, 0, 20, 0},
                                    {1, 1, 0.05f, 0, 0},     {1, 0.5f, 0.01f, 40, 0},  {2, 0.99f, 0, 1, 0},
                                    {0.05f, 0.95f, 0, 3, 0}, {1, 0.999f, 1e-4f, 0, 0}, {1, 1e-6f, 0, 0, 0}};
    auto logits = random_logits(vocab, random);
    for (const bool is_masked : {false, true}) {
        if (is_masked) {  // all but the first are tokens that may not be drawn, or nearly
            for (size_t i = 1; i < logits.size(); ++i) logits[i] = i % 7 == 0 ? logits[i] : -INFINITY;
        }
        for (SampleArgs args : kArgs) {
            for (int draw = 0; draw < 20; ++draw) {
                args.number = (random.below(999'999) + 1) * 1e-6;
                const auto token = sample(kernels, logits, args);
                check(token == sample(scalar_kernels(), logits, args),
                      std::string(kernels.name) + ", sampled of " + std::to_string(vocab));
                check(std::isfinite(logits[static_cast<size_t>(token)]), "a token that may be drawn");
            }
        }
    }
}

void check_largest(const Kernels& kernels, int64_t vocab, Random& random) {
    const auto what = std::string(kernels.name) + ", of " + std::to_string(vocab) + " logits";
    auto logits = random_logits(vocab, random);
    for (auto& logit : logits) logit = std::round(logit);  // many are equal
    const auto largest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    check(kernels.argmax(logits.data(), vocab) == largest, what + ": the first of the largest");

    for (int64_t count = 1; count <= std::min<int64_t>(vocab, 21); ++count) {
        std::vector<int32_t> found(static_cast<size_t>(count)), order(logits.size());
        Floats values(found.size());
        kernels.top_logits(logits.data(), vocab, count, found.data(), values.data());
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
        });
        for (size_t i = 0; i < found.size(); ++i) {
            check(found[i] == order[i] && values[i] == logits[static_cast<size_t>(order[i])], what + ": the top ones");
        }
    }
}

void check_not_finite(const Kernels& kernels, int64_t vocab, Random& random) {
    const auto what = std::string(kernels.name) + ", of " + std::to_string(vocab) + " logits, one not finite";
    const auto logits = random_logits(vocab, random);
    for (int64_t i = 0; i < vocab; i += vocab < 200 ? 1 : 97) {
        for (const float value : {float(NAN), float(INFINITY), -float(INFINITY)}) {
            auto broken = logits;
            broken[static_cast<size_t>(i)] = value;
            const bool may_be = value < 0 && vocab > 1;
            check((kernels.argmax(broken.data(), vocab) >= 0) == may_be, what + ": argmax");
            check((sample(kernels, broken, {1, 0.9f, 0, 0, 0.5}) >= 0) == may_be, what + ": sample");
        }
    }
}

void check_exp_sum(const Kernels& kernels, int64_t vocab, Random& random) {
    const auto logits = random_logits(vocab, random);
    const float largest = *std::max_element(logits.begin(), logits.end());
    double wanted = 0;
    for (const float logit : logits) wanted += std::exp(static_cast<double>(logit) - largest);
    const double found = kernels.exp_sum(logits.data(), vocab, largest);
    check(std::fabs(found - wanted) < 1e-6 * wanted, std::string(kernels.name) + ", sum of exponentials");
}

}  // namespace

void check_logits(const Kernels& kernels) {
    Random random(2);
    for (const auto vocab : kVocabs) {
        check_samples(kernels, vocab, random);
        check_largest(kernels, vocab, random);
        check_not_finite(kernels, vocab, random);
        check_exp_sum(kernels, vocab, random);
    }
}

}  // namespace legato
