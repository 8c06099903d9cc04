// The contract between bind.cpp and the kernels: plain data, no torch.
//
// A row is the D columns of one head of one token of q or k. Its columns [first, first + rotary)
// are R/2 pairs (a, b); with the token's angles, in fp32 (fp64 for fp64 inputs),
//
//   a' = a * cos_a - b * sin_a        b' = b * cos_b + a * sin_b
//
// where cos_a = cos_b and sin_a = sin_b unless the table has a value for each column. The other
// columns are copied bit by bit. `inverse` applies the transposed matrix, which for a table with
// one value a pair is the inverse rotation:
//
//   a' = a * cos_a + b * sin_b        b' = b * cos_b - a * sin_a
//
// Pairs are (i, i + R/2), or, interleaved, (2i, 2i + 1); what is read may be paired in one way and
// what is written in the other. The binding guarantees what the fields say; a kernel checks
// nothing.
#pragma once

#include <cstdint>

#include "opwright/rows.h"
#include "opwright/types.h"

namespace opwright {

// Strides in elements of one tensor (batch, tokens, heads, columns), whatever its order in memory.
struct RotaryStrides {
  int64_t batch, token, head, column;
};

// q or k. `output` is `input` itself with the same strides, or memory apart.
struct RotaryTensor {
  int64_t heads;  // 0: there is no such tensor
  const void* input;
  void* output;
  RotaryStrides from, to;
};

// cos or sin: (sections, batch, rows, columns); a stride is 0 where there is no such dimension.
struct RotaryTable {
  const void* data;
  int64_t section, batch, row, column;
};

// Which of the three section's tables a pair takes its angle from.
enum class SectionLayout : int32_t {
  kNone = -1,
  kBlocked = 0,      // section 0 first, then 1, then 2
  kInterleaved = 1,  // 0 1 2 0 1 2 ..., as long as a section has pairs left; 0 for the rest
};

struct Rotary {
  int64_t batch, tokens, columns;  // all > 0
  int64_t first, rotary;           // rotary even, may be 0
  DType type;                      // of q, k and the results
  DType table_type;
  bool interleaved_input, interleaved_output;
  bool per_column;         // the table has R values, else R/2
  bool interleaved_table;  // with per_column: which column a value is of
  bool inverse;
  bool stream_stores;  // the results are too large to be found in a cache later
  SectionLayout section_layout;
  int64_t sections[3];  // pairs, adding up to R/2
  RotaryTable cos, sin;
  // The table's row for each (section, batch, token): rows[section * rows_section + batch *
  // rows_batch + token], where a negative row is a token that is not rotated; null for row = token.
  const int64_t* rows;
  int64_t rows_section, rows_batch;
  RotaryTensor tensors[2];
};

struct RotaryKernels {
  void (*rotate)(const Rotary&);
};

}  // namespace opwright
