// Products with weight matrices on every instruction set: accuracy against double, and which results are equal to the
// last bit.
#include "runner/linear/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "flashmla/cpu.h"
#include "runner/float_bits.h"
#include "runner/linear/linear_kernel.h"

namespace flashmla::runner {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kBF16, WeightType::kF16, WeightType::kInt8};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<const LinearKernel*> all_kernels() {
  std::vector<const LinearKernel*> kernels;
  for (const std::string& isa : cpu_info().isas) {
    if (const LinearKernel* kernel = find_linear_kernel(isa)) kernels.push_back(kernel);
  }
  return kernels;
}

bool dots_bf16(const LinearKernel& kernel) { return std::string_view(kernel.isa) == "avx512_bf16"; }

// A matrix whose last byte is the last of a page that nothing follows: reading past its end crashes.
class GuardedMatrix {
 public:
  GuardedMatrix(WeightType type, int64_t rows, int64_t cols, uint64_t seed) : scales_(static_cast<size_t>(rows)) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto bytes = static_cast<size_t>(rows * cols * element_bytes(type));
    size_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(base_ + size_ - page, page, PROT_NONE);
    std::byte* data = base_ + size_ - page - bytes;
    matrix = {.rows = rows, .cols = cols, .type = type, .data = data, .row_scale = nullptr, .owner = nullptr};
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * cols; ++i) set(data, type, i, normal(random));
    for (float& scale : scales_) scale = 0.01f + 0.01f * std::fabs(normal(random));
    if (type == WeightType::kInt8) matrix.row_scale = scales_.data();
  }
  GuardedMatrix(const GuardedMatrix&) = delete;
  GuardedMatrix& operator=(const GuardedMatrix&) = delete;
  ~GuardedMatrix() { munmap(base_, size_); }

  Matrix matrix;

 private:
  static void set(std::byte* data, WeightType type, int64_t i, float value) {
    switch (type) {
      case WeightType::kF32: std::memcpy(data + 4 * i, &value, 4); return;
      case WeightType::kBF16: {
        const uint16_t bits = float_to_bf16(value);
        std::memcpy(data + 2 * i, &bits, 2);
        return;
      }
      case WeightType::kF16: {  // sign, exponents 2^-6 .. 2^1 and, for one in 16, subnormal numbers
        const auto source = std::bit_cast<uint32_t>(value);
        const uint32_t exponent = source % 16 == 0 ? 0 : 9 + source / 16 % 8;
        const auto bits = static_cast<uint16_t>((source >> 16 & 0x8000) | exponent << 10 | (source >> 8 & 0x3ff));
        std::memcpy(data + 2 * i, &bits, 2);
        return;
      }
      case WeightType::kInt8:
        data[i] = static_cast<std::byte>(static_cast<int8_t>(std::fmin(std::fmax(40 * value, -128), 127)));
        return;
    }
  }

  std::byte* base_ = nullptr;
  size_t size_ = 0;
  std::vector<float> scales_;
};

// `tokens` rows of activations with a stride of their own.
struct Activations {
  Activations(int64_t tokens_in, int64_t cols_in, uint64_t seed) : tokens(tokens_in), cols(cols_in), stride(cols + 5) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    values.assign(static_cast<size_t>(tokens * stride), kNaN);  // between the rows: must reach no result
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < cols; ++c) row(t)[c] = normal(random);
    }
  }
  float* row(int64_t t) { return values.data() + t * stride; }
  const float* row(int64_t t) const { return values.data() + t * stride; }

  int64_t tokens, cols, stride;
  std::vector<float> values;
};

struct Output {
  static constexpr float kUntouched = 7.25f;
  Output(int64_t tokens_in, int64_t rows_in) : tokens(tokens_in), rows(rows_in), stride(rows + 3) {
    values.assign(static_cast<size_t>(tokens * stride), kUntouched);
  }
  float* row(int64_t t) { return values.data() + t * stride; }
  const float* row(int64_t t) const { return values.data() + t * stride; }
  std::vector<float> token(int64_t t) const { return {row(t), row(t) + rows}; }
  void expect_only_rows_written() const {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t r = rows; r < stride; ++r) EXPECT_EQ(row(t)[r], kUntouched) << "token " << t << ", place " << r;
    }
  }

  int64_t tokens, rows, stride;
  std::vector<float> values;
};

Product product_of(const Matrix& w, const Activations& x, Output& y) {
  return {&w, x.values.data(), x.stride, x.tokens, y.values.data(), y.stride};
}

Output multiplied(const LinearKernel& kernel, const Matrix& w, const Activations& x, int32_t threads) {
  Output y(x.tokens, w.rows);
  const Product product = product_of(w, x, y);
  multiply_all_with(kernel, &product, 1, threads);
  y.expect_only_rows_written();
  return y;
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

// The product in double, and what its error is measured by.
class Oracle {
 public:
  Oracle(const Matrix& w, const Activations& x) : w_(w), x_(x) {
    std::vector<float> row(static_cast<size_t>(w.cols));
    for (int64_t r = 0; r < w.rows; ++r) {
      read_row(w, r, row.data());
      for (int64_t t = 0; t < x.tokens; ++t) entries_.push_back(entry(row, x.row(t)));
    }
  }

  void expect_near(const LinearKernel& kernel, const Output& y) const {
    for (int64_t r = 0; r < w_.rows; ++r) {
      for (int64_t t = 0; t < x_.tokens; ++t) {
        const Entry& want = entries_[static_cast<size_t>(r * x_.tokens + t)];
        ASSERT_NEAR(static_cast<double>(y.row(t)[r]), want.value, bound(kernel, want))
            << "row " << r << ", token " << t;
      }
    }
  }

 private:
  struct Entry {
    double value = 0;
    double terms = 0;    // sum of |w x|
    double weights = 0;  // sum of |w|
    double largest = 0;  // |x|
  };
  static Entry entry(const std::vector<float>& w, const float* x) {
    Entry sum;
    for (size_t c = 0; c < w.size(); ++c) {
      const auto weight = static_cast<double>(w[c]);
      const auto activation = static_cast<double>(x[c]);
      sum.value += weight * activation;
      sum.terms += std::fabs(weight * activation);
      sum.weights += std::fabs(weight);
      sum.largest = std::max(sum.largest, std::fabs(activation));
    }
    return sum;
  }
  // fp32 arithmetic, plus what the activations lose: bf16 2^-8 of each, 16-bit ones half a step.
  double bound(const LinearKernel& kernel, const Entry& entry) const {
    double bound = 1e-6 * entry.terms;
    if (dots_bf16(kernel) && w_.type == WeightType::kBF16 && x_.tokens > kFewTokens) bound += entry.terms / 256;
    if (dots_bf16(kernel) && w_.type == WeightType::kInt8) bound += entry.weights * entry.largest / 32639 * 0.501;
    return bound;
  }

  const Matrix& w_;
  const Activations& x_;
  std::vector<Entry> entries_;
};

struct Shape {
  int64_t rows, cols;
};
// Fewer columns than a vector, not a multiple of one, one and several blocks, rows that fill no tile.
constexpr Shape kShapes[] = {{1, 1}, {5, 7}, {3, 64}, {64, 512}, {67, 1000}, {130, 2100}, {9, 4133}};

class MatrixTest : public testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Types, MatrixTest, testing::ValuesIn(kTypes),
                         [](const auto& param) { return std::string(weight_type_name(param.param)); });

TEST_P(MatrixTest, EqualsDoubleWithinTheBound) {
  for (const Shape& shape : kShapes) {
    const GuardedMatrix w(GetParam(), shape.rows, shape.cols, 1);
    for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 11, 70}) {
      const Activations x(tokens, shape.cols, static_cast<uint64_t>(tokens));
      const Oracle oracle(w.matrix, x);
      for (const LinearKernel* kernel : all_kernels()) {
        SCOPED_TRACE(testing::Message() << kernel->isa << ", " << shape.rows << " x " << shape.cols << ", " << tokens
                                        << " tokens");
        oracle.expect_near(*kernel, multiplied(*kernel, w.matrix, x, 2));
      }
    }
  }
}

// Activations that do not stay in the L2 cache: panels of W's rows.
TEST_P(MatrixTest, ManyTokensInPanels) {
  const GuardedMatrix w(GetParam(), 70, 4133, 2);
  const Activations x(150, 4133, 3);
  const Oracle oracle(w.matrix, x);
  for (const LinearKernel* kernel : all_kernels()) {
    SCOPED_TRACE(kernel->isa);
    oracle.expect_near(*kernel, multiplied(*kernel, w.matrix, x, 2));
  }
}

TEST_P(MatrixTest, ThreadsChangeNoBit) {
  const GuardedMatrix w(GetParam(), 203, 2100, 4);
  for (int64_t tokens : {1, 4, 9, 130}) {
    const Activations x(tokens, 2100, 5);
    for (const LinearKernel* kernel : all_kernels()) {
      const Output alone = multiplied(*kernel, w.matrix, x, 1);
      for (int32_t threads : {2, 3, 16}) {
        EXPECT_EQ(bits_of(alone.values), bits_of(multiplied(*kernel, w.matrix, x, threads).values))
            << kernel->isa << ", " << tokens << " tokens, " << threads << " threads";
      }
    }
  }
}

// A token's result does not depend on the tokens beside it: always, except for bf16 weights under avx512_bf16, where
// kFewTokens divides two ways that each keep to themselves.
TEST_P(MatrixTest, TokenAloneEqualsTokenInBatch) {
  const GuardedMatrix w(GetParam(), 21, 4133, 6);
  constexpr int64_t kMost = 150;
  const Activations x(kMost, 4133, 7);
  for (const LinearKernel* kernel : all_kernels()) {
    const bool two_ways = dots_bf16(*kernel) && GetParam() == WeightType::kBF16;
    const auto first_tokens = [&](int64_t tokens) {
      Activations some = x;
      some.tokens = tokens;
      return multiplied(*kernel, w.matrix, some, 2);
    };
    const Output one = first_tokens(1);
    const Output above = first_tokens(kFewTokens + 1);
    for (int64_t tokens : {int64_t{2}, kFewTokens, kFewTokens + 1, int64_t{13}, kMost}) {
      const Output& like = two_ways && tokens > kFewTokens ? above : one;
      EXPECT_EQ(bits_of(like.token(0)), bits_of(first_tokens(tokens).token(0)))
          << kernel->isa << ", " << tokens << " tokens";
    }
    if (two_ways) {  // else the distinction is not needed
      EXPECT_NE(bits_of(one.token(0)), bits_of(above.token(0)));
    }
  }
}

TEST_P(MatrixTest, NonFiniteActivationsStayInTheirToken) {
  const GuardedMatrix w(GetParam(), 8, 700, 8);
  for (int64_t tokens : {3, 20}) {
    const Activations clean(tokens, 700, 9);
    for (float bad : {kNaN, kInf, -kInf}) {
      Activations x = clean;
      x.row(1)[333] = bad;
      for (const LinearKernel* kernel : all_kernels()) {
        SCOPED_TRACE(testing::Message() << kernel->isa << ", " << tokens << " tokens, " << bad);
        const Output want = multiplied(*kernel, w.matrix, clean, 2);
        const Output got = multiplied(*kernel, w.matrix, x, 2);
        for (int64_t t = 0; t < tokens; ++t) {
          if (t == 1) continue;
          EXPECT_EQ(bits_of(want.token(t)), bits_of(got.token(t))) << "token " << t;
        }
        EXPECT_THAT(got.token(1), testing::Each(testing::Truly([](float y) { return !std::isfinite(y); })));
      }
    }
  }
}

TEST_P(MatrixTest, NoColumnsGiveZeros) {
  const GuardedMatrix w(GetParam(), 9, 0, 10);
  for (int64_t tokens : {1, 8}) {
    const Activations x(tokens, 0, 11);
    for (const LinearKernel* kernel : all_kernels()) {
      const Output y = multiplied(*kernel, w.matrix, x, 2);
      for (int64_t t = 0; t < tokens; ++t) EXPECT_THAT(y.token(t), testing::Each(0.0f)) << kernel->isa;
    }
  }
}

TEST_P(MatrixTest, RowRangeAndReadRowAgreeWithTheWhole) {
  const GuardedMatrix w(GetParam(), 30, 77, 12);
  const Matrix part = w.matrix.row_range(11, 5);
  EXPECT_EQ(part.rows, 5);
  EXPECT_EQ(part.cols, 77);
  std::vector<float> from_part(77);
  std::vector<float> from_whole(77);
  for (int64_t r = 0; r < 5; ++r) {
    read_row(part, r, from_part.data());
    read_row(w.matrix, 11 + r, from_whole.data());
    EXPECT_EQ(from_part, from_whole);
  }
  const Activations x(2, 77, 13);
  Output whole(2, 30);
  Output some(2, 5);
  multiply(w.matrix, x.values.data(), x.stride, 2, whole.values.data(), whole.stride, 1);
  multiply(part, x.values.data(), x.stride, 2, some.values.data(), some.stride, 1);
  for (int64_t t = 0; t < 2; ++t) EXPECT_EQ(some.token(t), std::vector<float>(whole.row(t) + 11, whole.row(t) + 16));
}

TEST_P(MatrixTest, QuantisedWithinHalfAStep) {
  const GuardedMatrix w(GetParam(), 37, 515, 14);
  for (int32_t threads : {0, 1, 3}) {
    const Matrix q = quantize_int8(w.matrix, threads);
    ASSERT_EQ(q.type, WeightType::kInt8);
    std::vector<float> want(515);
    std::vector<float> got(515);
    for (int64_t r = 0; r < 37; ++r) {
      read_row(w.matrix, r, want.data());
      read_row(q, r, got.data());
      float largest = 0;
      for (float value : want) largest = std::max(largest, std::fabs(value));
      EXPECT_FLOAT_EQ(q.row_scale[r], largest / 127);
      for (size_t c = 0; c < want.size(); ++c) ASSERT_NEAR(got[c], want[c], 0.5001f * q.row_scale[r]) << r << ", " << c;
    }
  }
}

Matrix f32_matrix(const std::vector<float>& values, int64_t rows) {
  return {.rows = rows,
          .cols = static_cast<int64_t>(values.size()) / rows,
          .type = WeightType::kF32,
          .data = values.data(),
          .row_scale = nullptr,
          .owner = nullptr};
}

TEST(QuantizeInt8, ZeroTinyAndNonFiniteRows) {
  const std::vector<float> values = {0, 0, 0, 1e-41f, -5e-42f, 0, 1, kInf, 2, kNaN, 1, 2, 3e38f, -3e38f, 0};
  const Matrix q = quantize_int8(f32_matrix(values, 5), 1);
  std::vector<float> row(3);
  read_row(q, 0, row.data());
  EXPECT_THAT(row, testing::Each(0.0f));
  const auto* steps = static_cast<const int8_t*>(q.data);
  EXPECT_EQ(steps[3], 127);
  EXPECT_EQ(steps[4], -64);   // half of 127, to even
  for (int64_t r : {2, 3}) {  // not hidden as some finite weight
    read_row(q, r, row.data());
    EXPECT_THAT(row, testing::Each(testing::IsNan()));
  }
  read_row(q, 4, row.data());
  EXPECT_FLOAT_EQ(row[0], 3e38f);
  EXPECT_FLOAT_EQ(row[1], -3e38f);
}

// Every integer sum at its largest: -128 from a checkpoint, activations of one size and sign.
TEST(Int8Products, LargestSumsDoNotOverflow) {
  constexpr int64_t kCols = 6000;
  for (int value : {-128, 127}) {
    for (float sign : {1.0f, -1.0f}) {
      const std::vector<int8_t> weights(static_cast<size_t>(4 * kCols), static_cast<int8_t>(value));
      const std::vector<float> scales(4, 0.5f);
      const Matrix w = {.rows = 4,
                        .cols = kCols,
                        .type = WeightType::kInt8,
                        .data = weights.data(),
                        .row_scale = scales.data(),
                        .owner = nullptr};
      Activations x(3, kCols, 15);
      for (int64_t t = 0; t < 3; ++t) std::fill_n(x.row(t), kCols, sign * 32768);
      for (const LinearKernel* kernel : all_kernels()) {
        const Output y = multiplied(*kernel, w, x, 1);
        const double want = 0.5 * value * static_cast<double>(sign) * 32768 * kCols;
        for (int64_t t = 0; t < 3; ++t) {
          for (float got : y.token(t))
            EXPECT_NEAR(static_cast<double>(got), want, 1e-6 * std::fabs(want)) << kernel->isa;
        }
      }
    }
  }
}

// One activation far larger than the others costs the others their digits in its own block of columns only, and small
// ones lose nothing to the scale.
TEST(Int8Products, OutliersAndTinyActivations) {
  const GuardedMatrix w(WeightType::kInt8, 6, 4133, 16);
  for (float factor : {1e-25f, 1.0f, 1e25f}) {
    Activations x(2, 4133, 17);
    for (int64_t c = 0; c < x.cols; ++c) x.row(0)[c] *= factor;
    x.row(1)[2500] = 1000;
    const Oracle oracle(w.matrix, x);
    for (const LinearKernel* kernel : all_kernels()) {
      SCOPED_TRACE(testing::Message() << kernel->isa << ", " << factor);
      oracle.expect_near(*kernel, multiplied(*kernel, w.matrix, x, 1));
    }
  }
}

TEST(MultiplyAll, EqualsSingleProducts) {
  std::vector<std::unique_ptr<GuardedMatrix>> matrices;
  std::vector<std::unique_ptr<Activations>> inputs;
  std::vector<Output> outputs;
  std::vector<Product> products;
  constexpr int64_t kTokens[] = {1, 9, 0, 3, 70, 5};
  for (size_t i = 0; i < 6; ++i) {
    for (WeightType type : kTypes) {
      const auto rows = static_cast<int64_t>(i == 3 ? 0 : 20 + 37 * i);
      const auto cols = static_cast<int64_t>(600 * i + 90);
      matrices.push_back(std::make_unique<GuardedMatrix>(type, rows, cols, i));
      inputs.push_back(std::make_unique<Activations>(kTokens[i], cols, i));
      outputs.emplace_back(kTokens[i], rows);
    }
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    products.push_back(product_of(matrices[i]->matrix, *inputs[i], outputs[i]));
  }
  for (const LinearKernel* kernel : all_kernels()) {
    for (int32_t threads : {1, 3}) {
      multiply_all_with(*kernel, products.data(), static_cast<int64_t>(products.size()), threads);
      for (size_t i = 0; i < matrices.size(); ++i) {
        const Output want = multiplied(*kernel, matrices[i]->matrix, *inputs[i], 1);
        EXPECT_EQ(bits_of(want.values), bits_of(outputs[i].values)) << kernel->isa << ", product " << i;
      }
    }
  }
}

// Gate and up of one expert share their activations, which are then prepared once; another expert with as many tokens,
// or weights of another type, must not be given them.
TEST(MultiplyAll, SharedActivations) {
  const Activations one(17, 1100, 20);
  const Activations other(17, 1100, 21);
  struct Case {
    WeightType type;
    const Activations* x;
  };
  const Case cases[] = {{WeightType::kBF16, &one},   {WeightType::kBF16, &one},   {WeightType::kBF16, &other},
                        {WeightType::kInt8, &other}, {WeightType::kInt8, &other}, {WeightType::kInt8, &one},
                        {WeightType::kF32, &one},    {WeightType::kF32, &other}};
  std::vector<std::unique_ptr<GuardedMatrix>> matrices;
  std::vector<Output> outputs;
  for (const Case& c : cases) {
    matrices.push_back(std::make_unique<GuardedMatrix>(c.type, 40, 1100, matrices.size()));
    outputs.emplace_back(17, 40);
  }
  for (const LinearKernel* kernel : all_kernels()) {
    std::vector<Product> products;
    for (size_t i = 0; i < matrices.size(); ++i) {
      products.push_back(product_of(matrices[i]->matrix, *cases[i].x, outputs[i]));
    }
    multiply_all_with(*kernel, products.data(), static_cast<int64_t>(products.size()), 2);
    for (size_t i = 0; i < matrices.size(); ++i) {
      EXPECT_EQ(bits_of(multiplied(*kernel, matrices[i]->matrix, *cases[i].x, 1).values), bits_of(outputs[i].values))
          << kernel->isa << ", product " << i;
    }
  }
}

TEST(MultiplyAll, ManyCallersAtOnce) {
  const GuardedMatrix w(WeightType::kBF16, 300, 1100, 21);
  const Activations few(2, 1100, 22);
  const Activations many(20, 1100, 23);
  const LinearKernel& kernel = default_linear_kernel();
  const Output want_few = multiplied(kernel, w.matrix, few, 1);
  const Output want_many = multiplied(kernel, w.matrix, many, 1);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        EXPECT_EQ(bits_of(want_few.values), bits_of(multiplied(kernel, w.matrix, few, 2).values));
        EXPECT_EQ(bits_of(want_many.values), bits_of(multiplied(kernel, w.matrix, many, 2).values));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace flashmla::runner
