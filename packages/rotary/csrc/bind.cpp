// Schemas, argument checks and allocation of apply_rotary, and the calls into its kernel.
//
// apply_rotary_forward rotates, apply_rotary_backward rotates back; each is the other's derivative,
// and since they are linear in q and k nothing of these is kept. Every differentiable operator X
// has a twin X_raw with the same kernel and no autograd, which costs a caller that needs no
// gradient nothing. Autograd, fakes and the rest are registered from Python (registration.py).
#include <tuple>
#include <vector>

#include "opwright/overlap.h"
#include "opwright/stable.h"
#include "rotary.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(RotaryKernels, rotary_kernels)

namespace {

const RotaryKernels& kernels() {
  static const RotaryKernels& table = rotary_kernels_for_level();
  return table;
}

// What says which angles a token gets.
struct Places {
  const OptionalTensor& positions;
  const OptionalTensor& cu_seqlens;
  const OptionalTensor& offsets;
  int64_t offset;
};

struct Options {
  int64_t seq_dim;
  bool interleaved, deinterleave;
  int64_t rotary_dim;  // -1 for all columns
  bool trailing;
  // Empty, or a single 0, for none: an exported program has no way to store an empty list.
  const std::vector<int64_t>& sections;
  int64_t section_layout;

  bool with_sections() const {
    return !sections.empty() && !(sections.size() == 1 && sections[0] == 0);
  }
};

// ---- checks -------------------------------------------------------------------------------------

// Sizes of q or k as (batch, tokens, heads, columns).
struct Sizes {
  int64_t batch, tokens, heads, columns;
};

Sizes sizes_of(const Tensor& tensor, int64_t seq_dim) {
  const Shape size = sizes(tensor);
  const int64_t token = size.ndim - 4 + seq_dim, head = size.ndim - 1 - seq_dim;
  return {size.ndim == 4 ? size[0] : 1, size[token], size[head], size[-1]};
}

RotaryStrides strides_of(const Tensor& tensor, int64_t seq_dim) {
  const Shape stride = strides(tensor);
  const int64_t token = stride.ndim - 4 + seq_dim, head = stride.ndim - 1 - seq_dim;
  return {stride.ndim == 4 ? stride[0] : 0, stride[token], stride[head], stride[-1]};
}

DType check_q(const char* op, const Tensor& q, const Options& options) {
  const DType type = float_dtype(q, op, "q");
  check(q.dim() == 3 || q.dim() == 4, op, "q with 3 or 4 dimensions",
        [&] { return text(q.dim()); });
  check(options.seq_dim == 1 || options.seq_dim == 2, op, "seq_dim to be 1 or 2",
        [&] { return text(options.seq_dim); });
  return type;
}

void check_k(const char* op, const Tensor& k, const Tensor& q, DType type, const Options& options) {
  check(
      dtype_code(k) == dtype_code(type), op,
      [&] { return std::string("k of dtype ") + dtype_name(type) + " like q"; },
      [&] { return dtype_name(dtype_code(k)); });
  const Sizes of_q = sizes_of(q, options.seq_dim);
  bool fits = k.dim() == q.dim();
  if (fits) {
    const Sizes of_k = sizes_of(k, options.seq_dim);
    fits = of_k.batch == of_q.batch && of_k.tokens == of_q.tokens && of_k.columns == of_q.columns;
  }
  check(
      fits, op, [&] { return "k of q's shape " + text(sizes(q)) + " but for the heads"; },
      [&] { return text(sizes(k)); });
  check_cpu(k, op, "k");
}

int64_t check_rotary_dim(const char* op, int64_t columns, const Options& options) {
  const int64_t rotary = options.rotary_dim == -1 ? columns : options.rotary_dim;
  check(
      rotary >= 0 && rotary <= columns && rotary % 2 == 0, op,
      [&] { return "rotary_dim to be even and from 0 to " + text(columns); },
      [&] { return text(rotary); });
  return rotary;
}

void check_sections(const char* op, int64_t rotary, const Options& options) {
  check(options.section_layout == 0 || options.section_layout == 1, op,
        "section_layout to be one of blocked, interleaved",
        [&] { return text(options.section_layout); });
  const std::vector<int64_t>& sections = options.sections;
  if (!options.with_sections()) return;
  int64_t sum = 0;
  bool good = sections.size() == 3;
  for (const int64_t pairs : sections) {
    good = good && pairs >= 0 && pairs <= rotary / 2;
    if (good) sum += pairs;  // of three such numbers, which cannot overflow
  }
  check(
      good && sum == rotary / 2, op,
      [&] { return "sections to be 3 numbers of pairs that add up to " + text(rotary / 2); },
      [&] { return text({sections.data(), static_cast<int64_t>(sections.size())}); });
}

DType check_tables(const char* op, const Tensor& cos, const Tensor& sin, DType type) {
  const int32_t code = dtype_code(cos);
  const bool narrow = code == aoti_torch_dtype_float32() || code == aoti_torch_dtype_bfloat16() ||
                      code == aoti_torch_dtype_float16();
  const bool wide = code == aoti_torch_dtype_float64() && type == DType::float64;
  const auto expected = [&] {
    const char* types = type == DType::float64 ? "bfloat16, float16, float32 or float64"
                                               : "bfloat16, float16 or float32";
    return std::string("cos of dtype ") + types + " with " + dtype_name(type) + " q";
  };
  check(narrow || wide, op, expected, [&] { return dtype_name(code); });
  check(
      dtype_code(sin) == code, op, [&] { return "sin of dtype " + dtype_name(code) + " like cos"; },
      [&] { return dtype_name(dtype_code(sin)); });
  check(
      same(sizes(sin), sizes(cos)), op, [&] { return "sin of cos's shape " + text(sizes(cos)); },
      [&] { return text(sizes(sin)); });
  check_cpu(cos, op, "cos");
  check_cpu(sin, op, "sin");
  return float_dtype(cos, op, "cos");
}

// The tables' shape: (rows, W), (batch, rows, W), or with sections (3, batch, rows, W); with
// positions of each section (rows, W), too.
void check_table_shape(const char* op, const Tensor& cos, const Sizes& q, int64_t rotary,
                       bool sections, bool positions_of_sections) {
  const Shape size = sizes(cos);
  const int64_t width = size.ndim > 0 ? size[-1] : -1;
  const bool plain = size.ndim == 2, batched = size.ndim == 3 && !sections;
  const bool split = size.ndim == 4 && sections && size[0] == 3 && !positions_of_sections;
  bool good = width == rotary || width == rotary / 2;
  if (sections) {
    good = good && (split || (plain && positions_of_sections));
  } else {
    good = good && (plain || batched);
  }
  if (good && (batched || split)) good = size[-3] == q.batch || size[-3] == 1;
  const auto expected = [&] {
    const std::string widths = text(rotary / 2) + " or " + text(rotary) + ")";
    const std::string with_batch = text(q.batch) + " or 1, rows, " + widths;
    if (positions_of_sections) return "cos of shape (rows, " + widths;
    if (sections) return "cos of shape (3, " + with_batch;
    return "cos of shape (rows, " + widths + ", or (" + with_batch;
  };
  check(good, op, expected, [&] { return text(size); });
}

bool is_index(const Tensor& tensor) {
  const int32_t code = dtype_code(tensor);
  return code == aoti_torch_dtype_int64() || code == aoti_torch_dtype_int32();
}

void check_index(const char* op, const Tensor& tensor, const char* argument) {
  check(
      is_index(tensor), op, [&] { return std::string(argument) + " of dtype int32 or int64"; },
      [&] { return dtype_name(dtype_code(tensor)); });
  check_cpu(tensor, op, argument);
}

// Whether each section has positions of its own.
bool check_places(const char* op, const Places& places, const Sizes& q, bool sections) {
  bool of_sections = false;
  if (places.positions) {
    check_index(op, *places.positions, "positions");
    const Shape size = sizes(*places.positions);
    of_sections = sections && size.ndim == 3 && size[0] == 3;
    const bool row = size.ndim == 1, batched = size.ndim == 2 || of_sections;
    bool good = (row || batched) && size[-1] == q.tokens;
    if (good && batched) good = size[-2] == q.batch || size[-2] == 1;
    check(
        good, op,
        [&] {
          const std::string tokens = text(q.tokens);
          const std::string with_batch = text(q.batch) + " or 1, " + tokens + ")";
          return "positions of shape (" + tokens + ",) or (" + with_batch +
                 (sections ? " or (3, " + with_batch : "");
        },
        [&] { return text(size); });
    check(!places.cu_seqlens && !places.offsets && places.offset == 0, op,
          "positions without cu_seqlens and offsets", "both");
  }
  if (places.cu_seqlens) {
    check_index(op, *places.cu_seqlens, "cu_seqlens");
    check(places.cu_seqlens->dim() == 1 && places.cu_seqlens->numel() > 0, op,
          "cu_seqlens of shape (sequences + 1,)", [&] { return text(sizes(*places.cu_seqlens)); });
    check(q.batch == 1, op, "a batch of 1 with cu_seqlens", [&] { return text(q.batch); });
  }
  if (places.offsets) {
    check_index(op, *places.offsets, "offsets");
    const int64_t count = places.cu_seqlens ? places.cu_seqlens->numel() - 1 : q.batch;
    check(
        places.offsets->dim() == 1 && places.offsets->numel() == count, op,
        [&] { return "offsets of shape (" + text(count) + ",)"; },
        [&] { return text(sizes(*places.offsets)); });
  }
  return of_sections;
}

// ---- positions ----------------------------------------------------------------------------------

// Elements of an int32 or int64 tensor of up to 3 dimensions, the missing ones in front.
class Indices {
 public:
  explicit Indices(const Tensor& tensor)
      : data_(tensor.const_data_ptr()), wide_(dtype_code(tensor) == aoti_torch_dtype_int64()) {
    const Shape size = sizes(tensor), stride = strides(tensor);
    for (int64_t d = 1; d <= size.ndim; ++d) stride_[3 - d] = size[-d] == 1 ? 0 : stride[-d];
  }
  int64_t operator()(int64_t i, int64_t j, int64_t k) const {
    const int64_t at = i * stride_[0] + j * stride_[1] + k * stride_[2];
    return wide_ ? static_cast<const int64_t*>(data_)[at] : static_cast<const int32_t*>(data_)[at];
  }
  int64_t operator[](int64_t k) const { return (*this)(0, 0, k); }

 private:
  const void* data_;
  bool wide_;
  int64_t stride_[3] = {0, 0, 0};
};

// The table's row for each token, checked to be one of its rows.
class TableRows {
 public:
  TableRows(const char* op, const Places& places, const Sizes& q, int64_t rows, bool of_sections)
      : op_(op),
        table_rows_(rows),
        sections_(of_sections ? 3 : 1),
        batch_(batch_of(places, q)),
        rows_(explicit_rows(places) ? sections_ * batch_ * q.tokens : 0) {
    if (!explicit_rows(places)) {
      // Rows follow one another from `offset` on.
      if (q.tokens > 0) check_row(places.offset);
      if (q.tokens > 0) check_row(places.offset + q.tokens - 1);
    } else if (places.positions) {
      from_positions(*places.positions, q);
    } else if (places.cu_seqlens) {
      from_sequences(places, q);
    } else {
      from_offsets(places, q);
    }
  }
  const int64_t* data() const { return rows_.data(); }
  int64_t section_stride(const Sizes& q) const { return sections_ > 1 ? batch_ * q.tokens : 0; }
  int64_t batch_stride(const Sizes& q) const { return batch_ > 1 ? q.tokens : 0; }

 private:
  static bool explicit_rows(const Places& places) {
    return places.positions || places.cu_seqlens || places.offsets;
  }
  static int64_t batch_of(const Places& places, const Sizes& q) {
    if (places.positions) {
      return places.positions->dim() > 1 ? sizes(*places.positions)[-2] : 1;
    }
    return places.offsets ? q.batch : 1;
  }
  int64_t check_row(int64_t row) const {
    check<std::out_of_range>(
        row >= 0 && row < table_rows_, op_,
        [&] { return "positions from 0 to " + text(table_rows_ - 1) + ", the rows of cos"; },
        [&] { return text(row); });
    return row;
  }
  void from_positions(const Tensor& positions, const Sizes& q) {
    const Indices at(positions);
    int64_t* to = rows_.data();
    for (int64_t section = 0; section < sections_; ++section) {
      for (int64_t batch = 0; batch < batch_; ++batch) {
        for (int64_t token = 0; token < q.tokens; ++token) {
          *to++ = check_row(at(section, batch, token));
        }
      }
    }
  }
  void from_offsets(const Places& places, const Sizes& q) {
    const Indices offset(*places.offsets);
    for (int64_t batch = 0; batch < q.batch; ++batch) {
      const int64_t first = offset[batch] + places.offset;
      if (q.tokens > 0) check_row(first);
      if (q.tokens > 0) check_row(first + q.tokens - 1);
      for (int64_t token = 0; token < q.tokens; ++token) {
        rows_.data()[batch * q.tokens + token] = first + token;
      }
    }
  }
  // Tokens behind the last sequence are padding, which is not rotated.
  void from_sequences(const Places& places, const Sizes& q) {
    const Indices bound(*places.cu_seqlens);
    const int64_t sequences = places.cu_seqlens->numel() - 1;
    check(bound[0] == 0, op_, "cu_seqlens to start with 0", [&] { return text(bound[0]); });
    for (int64_t i = 0; i < sequences; ++i) {
      check(
          bound[i] <= bound[i + 1] && bound[i + 1] <= q.tokens, op_,
          [&] { return "cu_seqlens to ascend to at most " + text(q.tokens); },
          [&] { return text(bound[i + 1]) + " after " + text(bound[i]); });
    }
    int64_t token = 0;
    for (int64_t i = 0; i < sequences; ++i) {
      int64_t row = places.offset;
      if (places.offsets) row += Indices(*places.offsets)[i];
      for (; token < bound[i + 1]; ++token) rows_.data()[token] = check_row(row++);
    }
    for (; token < q.tokens; ++token) rows_.data()[token] = -1;
  }

  const char* op_;
  int64_t table_rows_, sections_, batch_;
  Scratch<int64_t> rows_;
};

// ---- the call -----------------------------------------------------------------------------------

RotaryTable table_of(const Tensor& tensor, DType type, bool sections, int64_t first_row) {
  const Shape size = sizes(tensor), stride = strides(tensor);
  RotaryTable table{};
  table.row = stride[-2];
  table.column = stride[-1];
  if (size.ndim > 2 && size[-3] > 1) table.batch = stride[-3];
  if (sections && size.ndim == 4) table.section = stride[0];
  table.data = static_cast<const char*>(tensor.const_data_ptr()) +
               first_row * table.row * element_size(type);
  return table;
}

// Checks everything, and then has `results` name the tensors that receive q and k.
template <class Results>
void rotate(const char* op, const Tensor& q, const OptionalTensor& k, const Tensor& cos,
            const Tensor& sin, const Places& places, const Options& options, bool inverse,
            const Results& results) {
  Rotary p{};
  p.type = check_q(op, q, options);
  if (k) check_k(op, *k, q, p.type, options);
  const Sizes size = sizes_of(q, options.seq_dim);
  p.rotary = check_rotary_dim(op, size.columns, options);
  check_sections(op, p.rotary, options);
  p.table_type = check_tables(op, cos, sin, p.type);
  const bool sections = options.with_sections();
  const bool of_sections = check_places(op, places, size, sections);
  check_table_shape(op, cos, size, p.rotary, sections, of_sections);
  const TableRows rows(op, places, size, sizes(cos)[-2], of_sections);

  const auto [q_out, k_out] = results(p.type);
  p.batch = size.batch;
  p.tokens = size.tokens;
  p.columns = size.columns;
  if (p.batch == 0 || p.tokens == 0 || p.columns == 0) return;
  p.first = options.trailing ? p.columns - p.rotary : 0;
  const bool read_interleaved = options.interleaved || options.deinterleave;
  const bool written_interleaved = options.interleaved && !options.deinterleave;
  p.interleaved_input = inverse ? written_interleaved : read_interleaved;
  p.interleaved_output = inverse ? read_interleaved : written_interleaved;
  p.per_column = sizes(cos)[-1] == p.rotary;
  p.interleaved_table = written_interleaved;
  p.inverse = inverse;
  p.section_layout =
      sections ? static_cast<SectionLayout>(options.section_layout) : SectionLayout::kNone;
  for (size_t i = 0; sections && i < 3; ++i) p.sections[i] = options.sections[i];
  const int64_t first_row = rows.data() ? 0 : places.offset;
  p.cos = table_of(cos, p.table_type, sections, first_row);
  p.sin = table_of(sin, p.table_type, sections, first_row);
  p.rows = rows.data();
  p.rows_section = rows.section_stride(size);
  p.rows_batch = rows.batch_stride(size);
  const auto set = [&](RotaryTensor& tensor, const Tensor& from, const Tensor& to) {
    tensor.heads = sizes_of(from, options.seq_dim).heads;
    tensor.input = from.const_data_ptr();
    tensor.output = to.mutable_data_ptr();
    tensor.from = strides_of(from, options.seq_dim);
    tensor.to = strides_of(to, options.seq_dim);
  };
  set(p.tensors[0], q, q_out);
  if (k) set(p.tensors[1], *k, *k_out);
  const int64_t heads = p.tensors[0].heads + p.tensors[1].heads;
  // In place the lines that are written are at hand already.
  p.stream_stores = p.tensors[0].input != p.tensors[0].output &&
                    beyond_caches(p.batch * p.tokens * heads * p.columns * element_size(p.type));
  if (heads > 0) kernels().rotate(p);
}

using Outputs = std::tuple<Tensor, OptionalTensor>;

Outputs rotated(const char* op, const Tensor& q, const OptionalTensor& k, const Tensor& cos,
                const Tensor& sin, const Places& places, const Options& options, bool inverse) {
  std::optional<Tensor> q_out, k_out;
  rotate(op, q, k, cos, sin, places, options, inverse, [&](DType type) {
    q_out = empty(sizes(q), type);
    if (k) k_out = empty(sizes(*k), type);
    return std::tuple<const Tensor&, const OptionalTensor&>(*q_out, k_out);
  });
  return {*q_out, k_out};
}

// The arguments that all operators share.
#define OPWRIGHT_ARGUMENTS                                                                       \
  const Tensor &q, const OptionalTensor &k, const Tensor &cos, const Tensor &sin,                \
      const OptionalTensor &positions, const OptionalTensor &cu_seqlens,                         \
      const OptionalTensor &offsets, int64_t offset, int64_t seq_dim, bool interleaved,          \
      bool deinterleave, int64_t rotary_dim, bool trailing, const std::vector<int64_t>&sections, \
      int64_t section_layout

Outputs apply_rotary_forward(OPWRIGHT_ARGUMENTS) {
  const Places places{positions, cu_seqlens, offsets, offset};
  const Options options{seq_dim,  interleaved, deinterleave,  rotary_dim,
                        trailing, sections,    section_layout};
  return rotated("apply_rotary", q, k, cos, sin, places, options, false);
}

Outputs apply_rotary_backward(OPWRIGHT_ARGUMENTS) {
  const Places places{positions, cu_seqlens, offsets, offset};
  const Options options{seq_dim,  interleaved, deinterleave,  rotary_dim,
                        trailing, sections,    section_layout};
  return rotated("apply_rotary_backward", q, k, cos, sin, places, options, true);
}

// ---- in place -----------------------------------------------------------------------------------

bool apart(const Extent& a, const Extent& b) { return a.first > b.last || b.first > a.last; }

// Refuses arguments of the in-place operator that share memory, and elements of one that do.
void check_memory(const Tensor& q, const OptionalTensor& k, const Tensor& cos, const Tensor& sin) {
  constexpr const char* kOp = "apply_rotary";
  constexpr const char* overlapping = "overlapping memory";
  const Extent of_cos = extent(cos), of_sin = extent(sin);
  const auto check_one = [&](const Tensor& tensor, const char* elements, const char* table) {
    check(without_overlap(tensor), kOp, elements, overlapping);
    const Extent own = extent(tensor);
    check(apart(own, of_cos) && apart(own, of_sin), kOp, table, overlapping);
  };
  check_one(q, "q whose elements lie apart", "q and the tables in memory of their own");
  if (!k) return;
  check_one(*k, "k whose elements lie apart", "k and the tables in memory of their own");
  check(lie_apart(q, *k), kOp, "q and k whose elements lie apart", overlapping);
}

void apply_rotary_check(const Tensor& q, const OptionalTensor& k, const Tensor& cos,
                        const Tensor& sin) {
  check_memory(q, k, cos, sin);
}

void apply_rotary_(OPWRIGHT_ARGUMENTS) {
  const Places places{positions, cu_seqlens, offsets, offset};
  const Options options{seq_dim,  interleaved, deinterleave,  rotary_dim,
                        trailing, sections,    section_layout};
  rotate("apply_rotary", q, k, cos, sin, places, options, false, [&](DType) {
    check_memory(q, k, cos, sin);
    mark_mutated(q);
    if (k) mark_mutated(*k);
    return std::tuple<const Tensor&, const OptionalTensor&>(q, k);
  });
}

int64_t rotary_kernel_level() { return static_cast<int64_t>(current_level()); }

}  // namespace
}  // namespace opwright

#define OPWRIGHT_SCHEMA(q, k, result)                                                     \
  "(Tensor" q " q, Tensor" k                                                              \
  "? k, Tensor cos, Tensor sin, Tensor? positions, Tensor? cu_seqlens, Tensor? offsets, " \
  "SymInt offset, int seq_dim, bool interleaved, bool deinterleave, int rotary_dim, "     \
  "bool trailing, int[] sections, int section_layout) -> " result

// Each schema twice: with autograd (from Python) and raw.
STABLE_TORCH_LIBRARY_FRAGMENT(opwright, m)
{
  opwright::define_once(m, "rotary_kernel_level() -> int", [&] {
    m.def("apply_rotary_forward" OPWRIGHT_SCHEMA("", "", "(Tensor, Tensor?)"));
    m.def("apply_rotary_forward_raw" OPWRIGHT_SCHEMA("", "", "(Tensor, Tensor?)"));
    m.def("apply_rotary_backward" OPWRIGHT_SCHEMA("", "", "(Tensor, Tensor?)"));
    m.def("apply_rotary_backward_raw" OPWRIGHT_SCHEMA("", "", "(Tensor, Tensor?)"));
    m.def("apply_rotary_" OPWRIGHT_SCHEMA("(a!)", "(b!)", "()"));
    m.def("apply_rotary__raw" OPWRIGHT_SCHEMA("(a!)", "(b!)", "()"));
    m.def("apply_rotary_check(Tensor q, Tensor? k, Tensor cos, Tensor sin) -> ()");
  });
}

#define OPWRIGHT_IMPLEMENT(m, name)          \
  m.impl(#name, TORCH_BOX(&opwright::name)); \
  m.impl(#name "_raw", TORCH_BOX(&opwright::name))

STABLE_TORCH_LIBRARY_IMPL(opwright, CPU, m)
{
  if (!opwright::g_defined_here) return;
  OPWRIGHT_IMPLEMENT(m, apply_rotary_forward);
  OPWRIGHT_IMPLEMENT(m, apply_rotary_backward);
  OPWRIGHT_IMPLEMENT(m, apply_rotary_);
  m.impl("apply_rotary_check", TORCH_BOX(&opwright::apply_rotary_check));
}

STABLE_TORCH_LIBRARY_IMPL(opwright, CompositeExplicitAutograd, m)
{
  if (!opwright::g_defined_here) return;
  m.impl("rotary_kernel_level", TORCH_BOX(&opwright::rotary_kernel_level));
}
