// Products of every format: near double precision over what they read, with bits that hang on the row alone.
#include <algorithm>
#include <memory>

#include "checks.h"
#include "rounded_rows.h"
#include "weights.h"

namespace legato {

namespace {

constexpr int64_t kNumRows = 64;
constexpr int64_t kHeights[] = {1, 3, 4, 5, 6, 17, 64};

enum class Outliers { None, Some };

// Rows of numbers from -1 to 1. With outliers: none in the first of three rows, one group in the second, a third of the
// groups in the last.
Floats random_rows(int64_t width, Outliers outliers, Random& random) {
    Floats x(static_cast<size_t>(kNumRows * width));
    for (int64_t i = 0; i < kNumRows * width; ++i) {
        const auto row = i / width, group = i % width / kGroup, num_groups = std::max<int64_t>(1, width / kGroup);
        const bool is_outlier = outliers == Outliers::Some && (row % 3 == 1   ? group == row % num_groups
                                                               : row % 3 == 2 ? group % 3 == 0
                                                                              : false);
        x[static_cast<size_t>(i)] = random.uniform() * (is_outlier ? 30.0f : 1.0f);
    }
    return x;
}

// Rows of x from `first` on, rounded as products with weights of the format read them.
class Rows {
 public:
    Rows(const Kernels& kernels, Format format, const Floats& x, int64_t width, int64_t first, int64_t num_rows)
        : kind_(kernels.row_format(format)),
          num_rows_(num_rows),
          width_(width),
          values_(x.begin() + first * width, x.begin() + (first + num_rows) * width) {
        if (kind_ == RowFormat::I8) int8_ = std::make_unique<OwnedInt8Rows>(kernels, values_, num_rows, width);
        if (kind_ != RowFormat::BF16) return;
        halves_.resize(static_cast<size_t>(num_rows * halves_width()));
        kernels.round_rows(values_.data(), width, halves_.data(), 0, num_rows);
    }

    Activations activations() const {
        Activations out{num_rows_, width_, nullptr, nullptr, {}};
        if (kind_ == RowFormat::F32) out.values = values_.data();
        if (kind_ == RowFormat::BF16) out.halves = halves_.data();
        if (kind_ == RowFormat::I8) out.int8 = int8_->view();
        return out;
    }

    Doubles exact(int64_t row) const {
        if (kind_ == RowFormat::I8) return int8_->exact(row);
        Doubles out(static_cast<size_t>(width_));
        for (int64_t k = 0; k < width_; ++k) {
            out[static_cast<size_t>(k)] =
                kind_ == RowFormat::F32 ? values_[static_cast<size_t>(row * width_ + k)]
                                        : value_of_bf16(halves_[static_cast<size_t>(row * halves_width() + k)]);
        }
        return out;
    }

    int num_refined(int64_t row) const { return int8_ ? int8_->refined_of(row)[0] : 0; }

 private:
    int64_t halves_width() const { return width_ + width_ % 2; }

    RowFormat kind_;
    int64_t num_rows_, width_;
    Floats values_;
    std::vector<uint16_t> halves_;
    std::unique_ptr<OwnedInt8Rows> int8_;
};

struct Product {
    const Kernels& kernels;
    const Matrix& matrix;
    const Packed& packed;
    std::string what;

    Rows rows(const Floats& x, int64_t first, int64_t num_rows) const {
        return {kernels, matrix.kind.format, x, matrix.inputs, first, num_rows};
    }

    // [num_rows, outputs], of rows [first, first + num_rows) of x.
    Floats operator()(const Floats& x, int64_t first, int64_t num_rows) const {
        return of(rows(x, first, num_rows).activations());
    }

    // The same of rows that lie among all of x, as those of an expert lie among others'.
    Floats among_all(const Floats& x, int64_t first, int64_t num_rows) const {
        const auto all = rows(x, 0, kNumRows);
        auto these = all.activations();
        these.first_row = first;
        these.rows = num_rows;
        return of(these);
    }

    Floats of(const Activations& activations) const {
        Floats out(static_cast<size_t>(activations.rows * matrix.outputs), NAN);
        kernels.linear(packed.weight(), activations, nullptr, out.data(), matrix.outputs, false, 0, packed.num_panels());
        return out;
    }
};

Floats check_near_double(const Product& product, const Floats& x) {
    const auto& matrix = product.matrix;
    const auto found = product(x, 0, kNumRows);
    const auto rows = product.rows(x, 0, kNumRows);
    Doubles wanted(static_cast<size_t>(matrix.outputs));
    for (int64_t row = 0; row < kNumRows; ++row) {
        const auto exact = rows.exact(row);
        for (int64_t output = 0; output < matrix.outputs; ++output) {
            double sum = 0;
            const double* w = matrix.exact.data() + output * matrix.inputs;
            for (int64_t k = 0; k < matrix.inputs; ++k) sum += exact[static_cast<size_t>(k)] * w[k];
            wanted[static_cast<size_t>(output)] = sum;
        }
        check_near(found.data() + row * matrix.outputs, wanted.data(), wanted.size(),
                   product.what + ", row " + std::to_string(row));
    }
    return found;
}

void check_company(const Product& product, const Floats& x, const Floats& wanted) {
    const auto outputs = product.matrix.outputs;
    for (const auto height : kHeights) {
        for (int64_t first = 0; first + height <= kNumRows; first += std::max<int64_t>(height, 7)) {
            const auto found = product(x, first, height);
            check(same_bits(found.data(), wanted.data() + first * outputs, found.size()),
                  product.what + ": bits among " + std::to_string(height));
            check(same_bits(product.among_all(x, first, height), found), product.what + ": bits where they lie");
        }
    }
    for (int64_t row = 0; row < kNumRows; ++row) {
        check(same_bits(product(x, row, 1).data(), wanted.data() + row * outputs, static_cast<size_t>(outputs)),
              product.what + ": bits alone, row " + std::to_string(row));
    }
}

// Panel after panel, from the last to the first, with a bias and onto numbers that are there.
void check_sums(const Product& product, const Floats& x, const Floats& plain, Random& random) {
    const auto outputs = static_cast<size_t>(product.matrix.outputs);
    const auto bias = random.normals(product.matrix.outputs), before = random.normals(kNumRows * product.matrix.outputs);
    const auto rows = product.rows(x, 0, kNumRows);
    auto found = before, wanted = before;
    for (int64_t panel = product.packed.num_panels() - 1; panel >= 0; --panel) {
        product.kernels.linear(product.packed.weight(), rows.activations(), bias.data(), found.data(),
                               product.matrix.outputs, true, panel,
                               panel + 1);
    }
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += plain[i] + bias[i % outputs];
    check(same_bits(found, wanted), product.what + ": panel after panel, with bias and added");
}

void check_unpacked(const Product& product) {
    const auto& matrix = product.matrix;
    for (int64_t output = 0; output < matrix.outputs; ++output) {
        const auto row = product.packed.row(output);
        for (size_t k = 0; k < row.size(); ++k) {
            const double wanted = matrix.exact[static_cast<size_t>(output * matrix.inputs) + k];
            check(std::fabs(row[k] - wanted) <= 3e-7 * std::fabs(wanted) + 1e-6, product.what + ": unpacked");
        }
    }
}

// Rows with an infinity or a NaN give numbers that show it, and leave their neighbours alone.
void check_not_finite(const Product& product, Floats x, const Floats& plain) {
    const auto outputs = static_cast<size_t>(product.matrix.outputs);
    x[static_cast<size_t>(product.matrix.inputs) + 1] = NAN;
    x[static_cast<size_t>(3 * product.matrix.inputs)] = -INFINITY;
    const auto found = product(x, 0, 5);
    for (size_t i = 0; i < found.size(); ++i) {
        const auto row = i / outputs;
        if (row == 1 || row == 3) check(!std::isfinite(found[i]), product.what + ": NaN or infinity is seen");
        else check(same_bits(&found[i], &plain[i], 1), product.what + ": bits beside a row with a NaN");
    }
}

void check_refined(const Product& product, const Floats& x, Outliers outliers) {
    if (!is_quantised(product.matrix.kind.format)) return;
    const auto rows = product.rows(x, 0, kNumRows);
    for (int64_t row = 0; row < kNumRows; ++row) {
        const bool has_outliers = outliers == Outliers::Some && row % 3 != 0 && product.matrix.inputs / kGroup > 3;
        const bool may_have = has_outliers || (outliers == Outliers::Some && product.matrix.inputs / kGroup == 3);
        check(may_have || rows.num_refined(row) == 0, product.what + ": no group is refined");
        check(!has_outliers || rows.num_refined(row) > 0, product.what + ": a group is refined");
    }
}

void check_kind(const Kernels& kernels, const Kind& kind, int64_t outputs, int64_t inputs) {
    Random random(static_cast<uint32_t>(outputs + inputs));
    const Matrix matrix(kind, outputs, inputs, random);
    const Packed packed(kernels, matrix);
    for (const auto outliers : {Outliers::None, Outliers::Some}) {
        const auto shape = std::to_string(outputs) + "x" + std::to_string(inputs);
        const Product product{kernels, matrix, packed,
                              std::string(kernels.name) + ", product with " + kind.name + " " + shape +
                                  (outliers == Outliers::Some ? ", outliers" : "")};
        const auto x = random_rows(inputs, outliers, random);
        check_refined(product, x, outliers);
        const auto found = check_near_double(product, x);
        check_company(product, x, found);
        check_sums(product, x, found, random);
        check_unpacked(product);
        if (inputs > 1) check_not_finite(product, x, found);
    }
}

}  // namespace

void check_products(const Kernels& kernels) {
    for (const auto& kind : kKinds) {
        check_kind(kernels, kind, 5, 32);
        check_kind(kernels, kind, 37, 96);
        check_kind(kernels, kind, 100, 576);
        check_kind(kernels, kind, 21, 1536);
        if (is_quantised(kind.format)) continue;
        check_kind(kernels, kind, 9, 1);
        check_kind(kernels, kind, 16, 77);
    }
}

}  // namespace legato
