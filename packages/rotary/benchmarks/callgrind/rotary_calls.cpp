// The kernel calls whose instructions are counted: every loop over a row, the dtypes models use,
// one number of pairs that ends in a tail, both table widths, and layouts whose columns are not
// adjacent.
#include <utility>

#include "counted.h"
#include "rotary.h"

namespace opwright {
namespace isa_avx2 {
extern const RotaryKernels rotary_kernels;
}

namespace counted {
namespace {

constexpr int64_t kTokens = 16, kHeads = 8, kFewHeads = 2, kColumns = 128;

Buffers buffers;
const RotaryKernels& kernels = isa_avx2::rotary_kernels;

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

struct Kind {
  bool interleaved_input = false, interleaved_output = false, inverse = false, per_column = true;
  bool heads_first = false, sections = false;
  int64_t tokens = kTokens, rotary = kColumns, column_stride = 1;
};

RotaryStrides strides(const Kind& kind, int64_t heads, int64_t column) {
  const int64_t row = kColumns * column;
  const int64_t token = kind.heads_first ? row : heads * row;
  const int64_t head = kind.heads_first ? kind.tokens * row : row;
  return {kind.tokens * heads * row, token, head, column};
}

RotaryTensor tensor(const Type& type, const Kind& kind, int64_t heads) {
  const int64_t count = kind.tokens * heads * kColumns;
  RotaryTensor t{};
  t.heads = heads;
  t.input = values(type.dtype, count * kind.column_stride);
  t.output = buffers.zeros(count * type.size);
  t.from = strides(kind, heads, kind.column_stride);
  t.to = strides(kind, heads, 1);
  return t;
}

std::function<void()> rotate(const Type& type, const Kind& kind) {
  Rotary p{};
  p.batch = 1;
  p.tokens = kind.tokens;
  p.columns = kColumns;
  p.rotary = kind.rotary;
  p.type = p.table_type = type.dtype;
  p.interleaved_input = kind.interleaved_input;
  p.interleaved_output = kind.interleaved_output;
  p.inverse = kind.inverse;
  p.per_column = kind.per_column;
  p.section_layout = kind.sections ? SectionLayout::kInterleaved : SectionLayout::kNone;
  const int64_t width = kind.per_column ? kind.rotary : kind.rotary / 2;
  const int64_t sections = kind.sections ? 3 : 1;
  p.sections[0] = kind.rotary / 2 - 2 * (kind.rotary / 6);
  p.sections[1] = p.sections[2] = kind.rotary / 6;
  p.cos.data = values(type.dtype, sections * kind.tokens * width);
  p.cos.section = kind.sections ? kind.tokens * width : 0;
  p.cos.row = width;
  p.cos.column = 1;
  p.sin = p.cos;
  p.tensors[0] = tensor(type, kind, kHeads);
  p.tensors[1] = tensor(type, kind, kFewHeads);
  return [p] { kernels.rotate(p); };
}

}  // namespace

std::vector<Call> calls() {
  std::vector<Call> all;
  for (const Type& type : kTypes) {
    const auto add = [&](const char* name, const Kind& kind) {
      all.push_back({std::string(name) + " " + type.name, rotate(type, kind)});
    };
    add("halves", {});
    add("halves, one token", {.tokens = 1});
    add("halves, a value a pair", {.per_column = false});
    add("halves, inverse", {.inverse = true});
    add("halves, heads first", {.heads_first = true});
    add("halves, 25 of 64 pairs", {.rotary = 50});
    add("halves, every second column", {.column_stride = 2});
    add("halves, sections", {.per_column = false, .sections = true});
    add("neighbours", {.interleaved_input = true, .interleaved_output = true, .per_column = false});
    add("neighbours to halves", {.interleaved_input = true});
    add("halves to neighbours", {.interleaved_output = true, .inverse = true});
  }
  return all;
}

}  // namespace counted
}  // namespace opwright
