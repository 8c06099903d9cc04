// The kernel calls whose instructions are counted: every kernel, the dtypes models use, one length
// that ends in a tail and one layout whose columns are not adjacent.
#include <algorithm>
#include <utility>

#include "counted.h"
#include "rms_norm.h"

namespace opwright {
namespace isa_avx2 {
extern const RmsNormKernels rms_norm_kernels;
}

namespace counted {
namespace {

constexpr int64_t kRows = 16, kColumns = 2048, kTail = 1003;

Buffers buffers;
const RmsNormKernels& kernels = isa_avx2::rms_norm_kernels;

struct Type {
  const char* name;
  DType dtype;
  int64_t size;
};
constexpr Type kTypes[] = {{"fp32", DType::float32, 4},
                           {"bf16", DType::bfloat16, 2},
                           {"fp16", DType::float16, 2},
                           {"fp64", DType::float64, 8}};

const void* values(DType dtype, int64_t count) {
  switch (dtype) {
    case DType::float32:
      return buffers.floats(count);
    case DType::float64:
      return buffers.doubles(count);
    case DType::bfloat16:
      return buffers.bfloat16s(count);
    case DType::float16:
      return buffers.halves(count);
  }
  return nullptr;
}

// The type of the arithmetic: fp64 for fp64, else fp32.
DType arithmetic(DType dtype) { return dtype == DType::float64 ? dtype : DType::float32; }
int64_t size_of(DType dtype) {
  return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}

RowLayout rows_of(int64_t rows, int64_t pitch, int64_t column_stride = 1) {
  RowLayout layout{};
  layout.ndim = 1;
  layout.size[0] = rows;
  layout.stride[0] = pitch;
  layout.column_stride = column_stride;
  return layout;
}

struct Forward {
  bool add = false, llama = false, weight = true;
  int64_t columns = kColumns, column_stride = 1;
};

std::function<void()> forward(const Type& type, const Forward& options) {
  const int64_t n = options.columns, step = options.column_stride;
  RmsNormForward p{};
  p.rows = kRows;
  p.columns = n;
  p.heads = 1;
  p.input_type = p.residual_type = p.stream_type = p.output_type = type.dtype;
  p.rounding = options.llama ? Rounding::kLlama : Rounding::kOnce;
  p.eps = 1e-6;
  p.input = values(type.dtype, kRows * n * step);
  p.input_layout = rows_of(kRows, n * step, step);
  p.output = buffers.zeros(kRows * n * type.size);
  p.output_layout = rows_of(kRows, n);
  p.rstd = buffers.zeros(kRows * 8);
  if (options.weight) p.weight = values(arithmetic(type.dtype), n);
  if (options.add) {
    p.residual = values(type.dtype, kRows * n);
    p.residual_layout = rows_of(kRows, n);
    p.residual_out = buffers.zeros(kRows * n * type.size);
    p.residual_out_layout = rows_of(kRows, n);
  }
  return [p] { kernels.forward(p); };
}

std::function<void()> backward(const Type& type, bool residual, int64_t n) {
  RmsNormBackward p{};
  p.rows = kRows;
  p.columns = n;
  p.heads = 1;
  p.stream_type = p.output_type = type.dtype;
  p.grad_output = values(type.dtype, kRows * n);
  p.grad_output_layout = rows_of(kRows, n);
  if (residual) {
    p.grad_residual_out = values(type.dtype, kRows * n);
    p.grad_residual_out_layout = rows_of(kRows, n);
  }
  p.value = values(type.dtype, kRows * n);
  p.value_layout = rows_of(kRows, n);
  p.weight = values(arithmetic(type.dtype), n);
  p.rstd = values(arithmetic(type.dtype), kRows);
  p.parts = weight_grad_parts(kRows, 1);
  p.grad_input = buffers.zeros(kRows * n * type.size);
  p.partial = buffers.zeros(p.parts * n * size_of(arithmetic(type.dtype)));
  return [p] { kernels.backward(p); };
}

std::function<void()> gated_forward(const Type& type, bool norm_first, int64_t groups) {
  const int64_t n = kColumns / groups, rows = kRows * groups;
  RmsNormGatedForward p{};
  p.rows = rows;
  p.columns = n;
  p.groups = groups;
  p.input_type = p.weight_type = p.output_type = type.dtype;
  p.rounding = Rounding::kLlama;
  p.activation = Activation::kSilu;
  p.norm_before_gate = norm_first;
  p.eps = 1e-6;
  p.input = values(type.dtype, rows * n);
  p.input_layout = rows_of(rows, n);
  p.gate = values(type.dtype, rows * n);
  p.gate_layout = rows_of(rows, n);
  p.weight = values(arithmetic(type.dtype), groups * n);
  p.output = buffers.zeros(rows * n * type.size);
  p.rstd = buffers.zeros(rows * 8);
  return [p] { kernels.gated_forward(p); };
}

std::function<void()> gated_backward(const Type& type, bool norm_first) {
  RmsNormGatedBackward p{};
  p.rows = kRows;
  p.columns = kColumns;
  p.groups = 1;
  p.input_type = p.output_type = type.dtype;
  p.activation = Activation::kSilu;
  p.norm_before_gate = norm_first;
  p.grad_output = values(type.dtype, kRows * kColumns);
  p.grad_output_layout = rows_of(kRows, kColumns);
  p.input = values(type.dtype, kRows * kColumns);
  p.input_layout = rows_of(kRows, kColumns);
  p.gate = values(type.dtype, kRows * kColumns);
  p.gate_layout = rows_of(kRows, kColumns);
  p.weight = values(arithmetic(type.dtype), kColumns);
  p.rstd = values(arithmetic(type.dtype), kRows);
  p.parts = weight_grad_parts(kRows, 1);
  p.grad_input = buffers.zeros(kRows * kColumns * type.size);
  p.grad_gate = buffers.zeros(kRows * kColumns * type.size);
  p.partial = buffers.zeros(p.parts * kColumns * size_of(arithmetic(type.dtype)));
  return [p] { kernels.gated_backward(p); };
}

std::function<void()> convert(const Type& type) {
  Convert p{};
  p.count = kColumns;
  p.from_type = type.dtype;
  p.to_type = arithmetic(type.dtype);
  p.offset = 1;
  p.from = values(type.dtype, kColumns);
  p.from_stride = 1;
  p.to = buffers.zeros(kColumns * 8);
  return [p] { kernels.convert(p); };
}

std::function<void()> combine_parts(const Type& type) {
  CombineParts p{};
  p.count = kColumns;
  p.parts = 8;
  p.partial_type = arithmetic(type.dtype);
  p.to_type = type.dtype;
  p.partial = values(p.partial_type, p.parts * kColumns);
  p.to = buffers.zeros(kColumns * 8);
  return [p] { kernels.combine_parts(p); };
}

}  // namespace

std::vector<Call> calls() {
  std::vector<Call> all;
  for (const Type& type : kTypes) {
    const auto add = [&](const char* name, std::function<void()> run) {
      all.push_back({std::string(name) + " " + type.name, std::move(run)});
    };
    add("forward", forward(type, {}));
    add("forward, no weight", forward(type, {.weight = false}));
    add("forward, Llama's rounding", forward(type, {.llama = true}));
    add("forward, 1003 columns", forward(type, {.columns = kTail}));
    add("forward, every second column", forward(type, {.column_stride = 2}));
    add("add, forward", forward(type, {.add = true}));
    add("backward", backward(type, false, kColumns));
    add("backward, 1003 columns", backward(type, false, kTail));
    add("add, backward", backward(type, true, kColumns));
    add("gated, norm first, forward", gated_forward(type, true, 1));
    add("gated, gate first, 4 groups, forward", gated_forward(type, false, 4));
    add("gated, norm first, backward", gated_backward(type, true));
    add("gated, gate first, backward", gated_backward(type, false));
    add("convert", convert(type));
    add("combine parts", combine_parts(type));
  }
  return all;
}

}  // namespace counted
}  // namespace opwright
