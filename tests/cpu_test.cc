// Knobs of back end "cpu": instruction set and threads, by the call and by the environment.
#include <cstdlib>

#include "support.h"

namespace flashmla::tests {
namespace {

// Sets a variable for the life of the object.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

const DecodeShape kShape{.batch = 2, .seq_q = 1, .total_q = 2, .heads_q = 16, .pages = 4, .table_width = 2};

std::string reason(const Context& context) {
  const Result<KernelChoice> choice = explain_decode(kShape, {}, context);
  EXPECT_TRUE(choice.ok()) << choice.status().text();
  return choice.ok() ? choice.value().reason : "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Cpu, InfoDescribesThisMachine) {
  const CpuInfo info = cpu_info();
  EXPECT_NE(info.model, "");
  EXPECT_GE(info.threads, 1);
  ASSERT_FALSE(info.isas.empty());
  EXPECT_EQ(info.isas.back(), "scalar");
}

TEST(Cpu, EveryInstructionSetRunsWhenItIsAskedFor) {
  for (const std::string& isa : cpu_info().isas) {
    EXPECT_TRUE(contains(reason({.backend = "cpu", .isa = isa}), "instruction set " + isa + " was asked for")) << isa;
    const std::string kernel = explain_decode(kShape, {}, {.backend = "cpu", .isa = isa}).value().kernel;
    EXPECT_TRUE(contains(kernel, isa)) << kernel;
  }
  EXPECT_TRUE(contains(reason({}), cpu_info().isas.front() + " is the best of this processor")) << reason({});
}

TEST(Cpu, EnvironmentNamesTheInstructionSet) {
  cases::DecodeProblem problem(small_case());
  for (const std::string& isa : cpu_info().isas) {
    const cases::DecodeResult expected = run(problem, {.backend = "cpu", .isa = isa});
    const Environment named("FLASHMLA_ISA", isa.c_str());
    EXPECT_EQ(expected, run(problem, {})) << isa;
    EXPECT_TRUE(contains(reason({.isa = "scalar"}), "scalar was asked for")) << "the call's own choice comes first";
  }
  const Environment unknown("FLASHMLA_ISA", "mmx");
  expect_error(problem.run({}), StatusCode::kInvalidArgument,
               {"isa: got 'mmx'", "one that this processor has", "scalar"});
}

TEST(Cpu, ThreadsByCallByEnvironmentAndByDefault) {
  EXPECT_TRUE(contains(reason({}), "threads: " + std::to_string(cpu_info().threads))) << reason({});
  {
    const Environment three("FLASHMLA_NUM_THREADS", "3");
    EXPECT_TRUE(contains(reason({}), "threads: 3")) << reason({});
    EXPECT_TRUE(contains(reason({.threads = 5}), "threads: 5")) << reason({.threads = 5});
    EXPECT_EQ(cpu_info().threads, 3);
  }
  for (const char* bad : {"", "0", "-1", "many", "2x"}) {
    const Environment ignored("FLASHMLA_NUM_THREADS", bad);
    EXPECT_TRUE(contains(reason({}), "threads: " + std::to_string(cpu_info().threads))) << reason({});
  }
  expect_error(explain_decode(kShape, {}, {.threads = 1 << 20}).status(), StatusCode::kInvalidArgument,
               {"threads: got 1048576", "0 (FLASHMLA_NUM_THREADS, else all available) .. "});
}

// What "cpu" does not compute is refused by name; the slow reference does not step in unless it is asked.
TEST(Cpu, RefusesWidthsThatItDoesNotCompute) {
  cases::DecodeCase c = small_case();
  c.requests = requests_of({2});
  c.heads_q = 1;
  c.latent_dim = (1 << 16) + 8;
  c.rope_dim = 0;
  cases::DecodeProblem problem(c);
  expect_error(problem.run({}), StatusCode::kUnsupported, {"width of a key", "got 65544", "up to 65536", "'cpu'"});
  run(problem, {.backend = "reference"});
  c.latent_dim = 1 << 16;
  expect_right(c);
}

}  // namespace
}  // namespace flashmla::tests
