// Rotary position embedding on the CPU. Formula and types: rotary.h.
//
// Work goes by tiles: some tokens of one batch element, and for them the heads of q and of k. A
// tile's angles are gathered from the table once, converted to the arithmetic's type, signed and
// put in the order of the columns, into scratch of at most kTileBytes, which stays in the first
// cache while every head of the tile is rotated by them. So the table is read once for all heads,
// whatever its type and layout, and what is left is to read and write each row once: 2 * D elements
// moved for 3 * R FLOPs, far below what memory allows. Within a tile the loop that walks the
// smaller stride of the result is innermost, so that what is written is contiguous for as long as
// it can be. It jumps from head to head after a few rows, too often for the processor to foresee
// what is read next, so the row of the next head (or token) is prefetched while one is rotated:
// measured three times as fast for (batch, heads, tokens, columns), where heads lie 1 MiB apart.
//
// Rows are independent. Threads share out (batch, tile, head) units, so one token with many heads,
// many tokens with one head and anything between go parallel alike, and the result does not depend
// on how they are shared out.
#include "opwright/parallel.h"
#include "rotary_rows.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

constexpr int64_t kTileBytes = 32 << 10;  // of angles, of which half are read as a rule
constexpr int64_t kMostTokens = 64;       // of a tile

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- angles -------------------------------------------------------------------------------------

// How the loops over a row want the angles.
enum class Order { kHalves, kNeighbours };

// The angles of a tile. Row i of `cos` and `sin` belongs to the tile's token i.
template <class A>
struct Angles {
  A* cos;
  A* sin;      // with the sign that the formula has for the column
  bool* none;  // per token: it is not rotated
  bool same;   // each pair has one angle for both columns
};

int64_t table_row(const Rotary& p, int64_t section, int64_t batch, int64_t token) {
  if (p.rows == nullptr) return token;
  return p.rows[section * p.rows_section + batch * p.rows_batch + token];
}

int64_t section_of(const Rotary& p, int64_t pair) {
  if (p.section_layout == SectionLayout::kNone) return 0;
  if (p.section_layout == SectionLayout::kBlocked) {
    return pair < p.sections[0] ? 0 : pair < p.sections[0] + p.sections[1] ? 1 : 2;
  }
  const int64_t section = pair % 3;
  return section > 0 && pair < 3 * p.sections[section] ? section : 0;
}

// A block of pairs' angles, for the columns a and b, put into the order that the loops want.
template <Order kOrder, class A, class Block>
OPWRIGHT_INLINE void keep(Block block, int64_t i, int64_t half, bool inverse, A* cos, A* sin,
                          Pair<A> cos_a, Pair<A> sin_a, Pair<A> cos_b, Pair<A> sin_b) {
  const Pair<A> first = inverse ? sin_b : negated(sin_a);
  const Pair<A> second = inverse ? negated(sin_a) : sin_b;
  if constexpr (kOrder == Order::kNeighbours) {
    store_pairs(cos + 2 * i, block, cos_a, cos_b);
    store_pairs(sin + 2 * i, block, first, second);
  } else {
    block.store(cos + i, cos_a);
    block.store(cos + half + i, cos_b);
    block.store(sin + i, first);
    block.store(sin + half + i, second);
  }
}

template <class A>
OPWRIGHT_INLINE bool equal(Pair<A> a, Pair<A> b) {
  return all(a.lo == b.lo) && all(a.hi == b.hi);
}

// One row of a table whose columns are adjacent and that has no sections.
template <Order kOrder, class A, class U>
bool dense_angles(const Rotary& p, const U* from_cos, const U* from_sin, A* cos, A* sin) {
  const int64_t half = p.rotary / 2;
  bool same = true;
  if (!p.per_column) {
    for_each_block<A>(half, [&](int64_t i, auto block) {
      const Pair<A> c = block.load(from_cos + i), s = block.load(from_sin + i);
      keep<kOrder>(block, i, half, p.inverse, cos, sin, c, s, c, s);
    });
  } else if (p.interleaved_table) {
    for_each_block<A>(half, [&](int64_t i, auto block) {
      Pair<A> cos_a, cos_b, sin_a, sin_b;
      load_pairs(from_cos + 2 * i, block, cos_a, cos_b);
      load_pairs(from_sin + 2 * i, block, sin_a, sin_b);
      same = same && equal(cos_a, cos_b) && equal(sin_a, sin_b);
      keep<kOrder>(block, i, half, p.inverse, cos, sin, cos_a, sin_a, cos_b, sin_b);
    });
  } else {
    for_each_block<A>(half, [&](int64_t i, auto block) {
      const Pair<A> cos_a = block.load(from_cos + i), cos_b = block.load(from_cos + half + i);
      const Pair<A> sin_a = block.load(from_sin + i), sin_b = block.load(from_sin + half + i);
      same = same && equal(cos_a, cos_b) && equal(sin_a, sin_b);
      keep<kOrder>(block, i, half, p.inverse, cos, sin, cos_a, sin_a, cos_b, sin_b);
    });
  }
  return same;
}

// Any table: value by value.
template <Order kOrder, class A, class U>
bool gathered_angles(const Rotary& p, int64_t batch, int64_t token, A* cos, A* sin) {
  const U* all_cos = static_cast<const U*>(p.cos.data) + batch * p.cos.batch;
  const U* all_sin = static_cast<const U*>(p.sin.data) + batch * p.sin.batch;
  const int64_t half = p.rotary / 2;
  bool same = true;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t section = section_of(p, i), row = table_row(p, section, batch, token);
    const U* c = all_cos + section * p.cos.section + row * p.cos.row;
    const U* s = all_sin + section * p.sin.section + row * p.sin.row;
    int64_t first = i, second = i;
    if (p.per_column) {
      first = p.interleaved_table ? 2 * i : i;
      second = p.interleaved_table ? 2 * i + 1 : i + half;
    }
    const A cos_a = to_accumulate<A>(c[first * p.cos.column]);
    const A cos_b = to_accumulate<A>(c[second * p.cos.column]);
    const A sin_a = to_accumulate<A>(s[first * p.sin.column]);
    const A sin_b = to_accumulate<A>(s[second * p.sin.column]);
    same = same && cos_a == cos_b && sin_a == sin_b;
    const int64_t at_a = kOrder == Order::kNeighbours ? 2 * i : i;
    const int64_t at_b = kOrder == Order::kNeighbours ? 2 * i + 1 : half + i;
    cos[at_a] = cos_a;
    cos[at_b] = cos_b;
    sin[at_a] = p.inverse ? sin_b : -sin_a;
    sin[at_b] = p.inverse ? -sin_a : sin_b;
  }
  return same;
}

template <Order kOrder, class A, class U>
void fill_angles(const Rotary& p, int64_t batch, int64_t first, int64_t count, Angles<A>& angles) {
  const bool dense =
      p.cos.column == 1 && p.sin.column == 1 && p.section_layout == SectionLayout::kNone;
  angles.same = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t token = first + i, row = table_row(p, 0, batch, token);
    angles.none[i] = row < 0;
    if (row < 0) continue;
    A* cos = angles.cos + i * p.rotary;
    A* sin = angles.sin + i * p.rotary;
    bool same;
    if (dense && !(kSame<A, double> && kLow<U>)) {
      const U* c = static_cast<const U*>(p.cos.data) + batch * p.cos.batch + row * p.cos.row;
      const U* s = static_cast<const U*>(p.sin.data) + batch * p.sin.batch + row * p.sin.row;
      same = dense_angles<kOrder>(p, c, s, cos, sin);
    } else {
      same = gathered_angles<kOrder, A, U>(p, batch, token, cos, sin);
    }
    angles.same = angles.same && same;
  }
}

// ---- rows ---------------------------------------------------------------------------------------

// One tensor's rows in a tile, rotated one by one. Rows whose columns are not adjacent pass through
// scratch, and so does what is read where it would be overwritten too early.
template <class T>
class Rows {
 public:
  using A = accumulate_t<T>;

  Rows(const Rotary& p, const Angles<A>& angles)
      : p_(p), angles_(angles), scratch_(needs_scratch() ? 2 * p.columns : 0) {}

  // Asks for a row, which need not exist.
  OPWRIGHT_INLINE void ahead(const RotaryTensor& tensor, int64_t batch, int64_t token,
                             int64_t head) const {
    if (tensor.from.column == 1) {
      const T* from = static_cast<const T*>(tensor.input) + at(tensor.from, batch, token, head);
      for (int64_t c = 0; c < p_.columns; c += kLineColumns) __builtin_prefetch(from + c);
    }
    if (tensor.to.column == 1 && !p_.stream_stores) {
      const T* to = static_cast<const T*>(tensor.output) + at(tensor.to, batch, token, head);
      for (int64_t c = 0; c < p_.columns; c += kLineColumns) __builtin_prefetch(to + c, 1);
    }
  }

  void rotate(const RotaryTensor& tensor, int64_t batch, int64_t token, int64_t head,
              int64_t i) const {
    const T* from = static_cast<const T*>(tensor.input) + at(tensor.from, batch, token, head);
    T* to = static_cast<T*>(tensor.output) + at(tensor.to, batch, token, head);
    const int64_t step_from = tensor.from.column, step_to = tensor.to.column;
    const bool apart = p_.interleaved_input == p_.interleaved_output || from != to;
    if (step_from == 1 && step_to == 1 && apart) return rotate_row(from, to, i);
    T* read = scratch_.data();
    T* written = step_to == 1 ? to : read + p_.columns;
    for (int64_t c = 0; c < p_.columns; ++c) read[c] = from[c * step_from];
    rotate_row(read, written, i);
    if (step_to == 1) return;
    for (int64_t c = 0; c < p_.columns; ++c) to[c * step_to] = written[c];
  }

 private:
  static constexpr int64_t kLineColumns = kLineBytes / int64_t{sizeof(T)};

  static int64_t at(const RotaryStrides& stride, int64_t batch, int64_t token, int64_t head) {
    return batch * stride.batch + token * stride.token + head * stride.head;
  }

  bool needs_scratch() const {
    if (p_.interleaved_input != p_.interleaved_output) return true;
    for (const RotaryTensor& tensor : p_.tensors) {
      if (tensor.heads > 0 && (tensor.from.column != 1 || tensor.to.column != 1)) return true;
    }
    return false;
  }

  OPWRIGHT_INLINE void rotate_row(const T* x, T* y, int64_t i) const {
    const bool stream = p_.stream_stores;
    const int64_t first = p_.first, end = p_.first + p_.rotary, half = p_.rotary / 2;
    if (angles_.none[i]) return copy_columns(x, y, p_.columns, stream);
    if (first > 0) copy_columns(x, y, first, stream);
    const A* c = angles_.cos + i * p_.rotary;
    const A* s = angles_.sin + i * p_.rotary;
    if (!p_.interleaved_input && !p_.interleaved_output) {
      rotate_halves(x + first, y + first, c, s, half, angles_.same, stream);
    } else if (p_.interleaved_input && p_.interleaved_output) {
      rotate_neighbours(x + first, y + first, c, s, p_.rotary, stream);
    } else if (p_.interleaved_input) {
      rotate_to_halves(x + first, y + first, c, s, half);
    } else {
      rotate_to_neighbours(x + first, y + first, c, s, half);
    }
    if (end < p_.columns) copy_columns(x + end, y + end, p_.columns - end, stream);
  }

  const Rotary& p_;
  const Angles<A>& angles_;
  Scratch<T> scratch_;
};

int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Heads [begin, end) of one tensor in a tile.
template <class T>
void rotate_tile(const Rows<T>& rows, const RotaryTensor& tensor, int64_t batch, int64_t first,
                 int64_t count, int64_t begin, int64_t end) {
  if (magnitude(tensor.to.token) < magnitude(tensor.to.head)) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t i = 0; i < count; ++i) {
        rows.ahead(tensor, batch, first + i, head + 1);
        rows.rotate(tensor, batch, first + i, head, i);
      }
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t head = begin; head < end; ++head) {
        rows.ahead(tensor, batch, first + i + 1, head);
        rows.rotate(tensor, batch, first + i, head, i);
      }
    }
  }
}

template <class T>
using FillAngles = void (*)(const Rotary&, int64_t, int64_t, int64_t, Angles<accumulate_t<T>>&);

template <class T, Order kOrder>
FillAngles<T> fill_from_table(DType table_type) {
  using A = accumulate_t<T>;
  switch (table_type) {
    case DType::float32:
      return fill_angles<kOrder, A, float>;
    case DType::bfloat16:
      return fill_angles<kOrder, A, BFloat16>;
    case DType::float16:
      return fill_angles<kOrder, A, Half>;
    case DType::float64:
      break;
  }
  // A float64 table goes with float64 tensors only.
  if constexpr (kSame<A, double>) return fill_angles<kOrder, A, double>;
  return nullptr;
}

template <class T>
void rotate(const Rotary& p) {
  using A = accumulate_t<T>;
  const bool neighbours = p.interleaved_input && p.interleaved_output;
  const FillAngles<T> fill = neighbours ? fill_from_table<T, Order::kNeighbours>(p.table_type)
                                        : fill_from_table<T, Order::kHalves>(p.table_type);
  const int64_t of_token = 2 * p.rotary * int64_t{sizeof(A)};
  const int64_t most = of_token > 0 ? smaller(kTileBytes / of_token, kMostTokens) : kMostTokens;
  const int64_t tokens = most > 1 ? smaller(most, p.tokens) : 1;
  const int64_t tiles = (p.tokens + tokens - 1) / tokens;
  const int64_t q_heads = p.tensors[0].heads, heads = q_heads + p.tensors[1].heads;
  const int64_t bytes = 2 * tokens * p.columns * int64_t{sizeof(T)};
  parallel_for(p.batch * tiles * heads, grain_for_bytes(bytes), [&](int64_t begin, int64_t end) {
    const FenceAtEnd fence(p.stream_stores);
    const Scratch<A> scratch(2 * tokens * p.rotary);
    bool none[kMostTokens];
    Angles<A> angles{scratch.data(), scratch.data() + tokens * p.rotary, none, true};
    const Rows<T> rows(p, angles);
    for (int64_t unit = begin; unit < end;) {
      const int64_t tile = unit / heads, batch = tile / tiles;
      const int64_t first = tile % tiles * tokens, count = smaller(tokens, p.tokens - first);
      const int64_t from = unit % heads, to = smaller(heads, from + end - unit);
      fill(p, batch, first, count, angles);
      if (from < q_heads) {
        rotate_tile(rows, p.tensors[0], batch, first, count, from, smaller(to, q_heads));
      }
      if (to > q_heads) {
        const int64_t k_from = from > q_heads ? from - q_heads : 0;
        rotate_tile(rows, p.tensors[1], batch, first, count, k_from, to - q_heads);
      }
      unit += to - from;
    }
  });
}

void dispatch_rotate(const Rotary& p) {
  with_type(p.type, [&](auto type) { rotate<typename decltype(type)::type>(p); });
}

}  // namespace

extern const RotaryKernels rotary_kernels = {dispatch_rotate};

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
