// The kernel calls whose instructions are counted: every activation in the dtypes models use, and
// for one of them each way of lying in memory, a width with a tail, and clamps.
#include <limits>
#include <utility>

#include "counted.h"
#include "gated_activation.h"

namespace opwright {
namespace isa_avx2 {
extern const GatedActivationKernels gated_activation_kernels;
}

namespace counted {
namespace {

constexpr int64_t kRows = 16, kColumns = 2048, kTail = 1003;

Buffers buffers;
const GatedActivationKernels& kernels = isa_avx2::gated_activation_kernels;

struct Type {
  const char* name;
  DType dtype;
  int64_t size;
};
constexpr Type kTypes[] = {{"fp32", DType::float32, 4},
                           {"bf16", DType::bfloat16, 2},
                           {"fp16", DType::float16, 2},
                           {"fp64", DType::float64, 8}};

char* values(DType dtype, int64_t count) {
  switch (dtype) {
    case DType::float32:
      return reinterpret_cast<char*>(buffers.floats(count));
    case DType::float64:
      return reinterpret_cast<char*>(buffers.doubles(count));
    case DType::bfloat16:
      return reinterpret_cast<char*>(buffers.bfloat16s(count));
    case DType::float16:
      return reinterpret_cast<char*>(buffers.halves(count));
  }
  return nullptr;
}

enum class Lies { kApart, kHalves, kInterleaved, kEverySecond };

struct Options {
  Activation activation = Activation::kSilu;
  bool clamped = false;
  Lies lies = Lies::kHalves;
  int64_t columns = kColumns;
};

GatedActivation parameters(const Type& type, const Options& o) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  GatedActivation p{};
  p.type = type.dtype;
  p.activation = o.activation;
  p.clamped = o.clamped;
  p.alpha = o.clamped ? 1.702 : 1.0;
  p.gate_limit = p.up_limit = o.clamped ? 1.0 : kInfinity;
  p.output_limit = kInfinity;
  p.up_offset = o.clamped ? 1.0 : 0.0;
  return p;
}

// gate and up, and their strides along a row and from row to row, in bytes.
struct Inputs {
  char *gate, *up;
  int64_t inner, outer;
};

Inputs inputs(const Type& type, const Options& o) {
  const int64_t n = o.columns, size = type.size;
  switch (o.lies) {
    case Lies::kApart:
      return {values(type.dtype, kRows * n), values(type.dtype, kRows * n), size, n * size};
    case Lies::kEverySecond:
      return {values(type.dtype, 2 * kRows * n), values(type.dtype, 2 * kRows * n), 2 * size,
              2 * n * size};
    case Lies::kHalves: {
      char* packed = values(type.dtype, 2 * kRows * n);
      return {packed, packed + n * size, size, 2 * n * size};
    }
    case Lies::kInterleaved: {
      char* packed = values(type.dtype, 2 * kRows * n);
      return {packed, packed + size, 2 * size, 2 * n * size};
    }
  }
  return {};
}

std::function<void()> forward(const Type& type, const Options& o) {
  const GatedActivation p = parameters(type, o);
  const Inputs in = inputs(type, o);
  char* y = static_cast<char*>(buffers.zeros(kRows * o.columns * type.size));
  const std::vector<char*> data{y, in.gate, in.up};
  const std::vector<int64_t> strides{type.size, in.inner, in.inner, o.columns * type.size,
                                     in.outer,  in.outer};
  return [p, data, strides, o] {
    kernels.forward(p, {data.data(), strides.data(), o.columns, kRows});
  };
}

std::function<void()> backward(const Type& type, const Options& o) {
  const GatedActivation p = parameters(type, o);
  const Inputs in = inputs(type, o);
  const int64_t row = o.columns * type.size;
  char* grad = values(type.dtype, kRows * o.columns);
  // The gradients lie as the inputs do.
  char* to = static_cast<char*>(buffers.zeros(4 * kRows * row));
  const int64_t apart = o.lies == Lies::kHalves        ? row
                        : o.lies == Lies::kInterleaved ? type.size
                                                       : 2 * kRows * row;
  const std::vector<char*> data{to, to + apart, grad, in.gate, in.up};
  const std::vector<int64_t> strides{in.inner, in.inner, type.size, in.inner, in.inner,
                                     in.outer, in.outer, row,       in.outer, in.outer};
  return [p, data, strides, o] {
    kernels.backward(p, {data.data(), strides.data(), o.columns, kRows}, true, true);
  };
}

constexpr std::pair<const char*, Activation> kActivationNames[] = {
    {"silu", Activation::kSilu},          {"gelu", Activation::kGelu},
    {"gelu_tanh", Activation::kGeluTanh}, {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},        {"sigmoid", Activation::kSigmoid},
    {"identity", Activation::kIdentity}};

}  // namespace

std::vector<Call> calls() {
  std::vector<Call> all;
  for (const Type& type : kTypes) {
    const auto add = [&](const std::string& name, std::function<void()> run) {
      all.push_back({name + " " + type.name, std::move(run)});
    };
    for (const auto& [name, activation] : kActivationNames) {
      add(std::string(name) + ", forward", forward(type, {.activation = activation}));
      add(std::string(name) + ", backward", backward(type, {.activation = activation}));
    }
    add("silu, two tensors, forward", forward(type, {.lies = Lies::kApart}));
    add("silu, two tensors, backward", backward(type, {.lies = Lies::kApart}));
    add("silu, 1003 columns, forward", forward(type, {.columns = kTail}));
    add("silu, 1003 columns, backward", backward(type, {.columns = kTail}));
    add("silu, every second element, forward", forward(type, {.lies = Lies::kEverySecond}));
    add("gpt-oss, interleaved, forward",
        forward(type, {.clamped = true, .lies = Lies::kInterleaved}));
    add("gpt-oss, interleaved, backward",
        backward(type, {.clamped = true, .lies = Lies::kInterleaved}));
  }
  return all;
}

}  // namespace counted
}  // namespace opwright
