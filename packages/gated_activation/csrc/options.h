// The options of a call as the dispatcher hands them over, their checks, and the two halves of a
// packed input: what bind.cpp and autograd.cpp share.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "gated_activation.h"
#include "opwright/aten.h"

namespace opwright {

// Arguments behind the tensors, in the order of every schema.
struct Options {
  int64_t activation;
  double alpha;
  std::optional<double> limit;
  double up_offset;
  bool clamp_output;

  double bound() const { return limit.value_or(std::numeric_limits<double>::infinity()); }
  Activation act() const { return static_cast<Activation>(activation); }
};

// How gate and up lie in a packed input.
struct Packing {
  bool interleaved, gate_first;
};

struct Halves {
  Tensor gate, up;
};

// Views of the halves of the last dimension, which is even.
inline Halves halves_of(const Tensor& input, Packing packing) {
  Tensor first, second;
  if (packing.interleaved) {
    first = input.slice(-1, 0, std::nullopt, 2);
    second = input.slice(-1, 1, std::nullopt, 2);
  } else {
    const c10::SymInt width = input.sym_size(-1) / 2;
    first = input.narrow_symint(-1, 0, width);
    second = input.narrow_symint(-1, width, width);
  }
  return packing.gate_first ? Halves{first, second} : Halves{second, first};
}

// Options arrive as numbers; Python turns their names into them.
inline void check_options(const Options& o, const char* op) {
  check(o.activation >= 0 && o.activation < kActivations, op,
        "activation to be one of silu, gelu, gelu_tanh, relu, relu2, sigmoid, identity",
        [&] { return std::to_string(o.activation); });
  check(std::isfinite(o.alpha), op, "alpha to be finite", [&] { return std::to_string(o.alpha); });
  check(o.alpha == 1 || o.act() == Activation::kSilu, op,
        "alpha to be 1 with another activation than silu", [&] { return std::to_string(o.alpha); });
  check(!o.limit || *o.limit > 0, op, "limit to be positive",
        [&] { return std::to_string(*o.limit); });
  check(std::isfinite(o.up_offset), op, "up_offset to be finite",
        [&] { return std::to_string(o.up_offset); });
}

// For autograd's context, which keeps values of the interpreter's types.
inline std::vector<double> saved(const Options& o) {
  return {static_cast<double>(o.activation), o.alpha, o.bound(), o.up_offset,
          o.clamp_output ? 1.0 : 0.0};
}
inline Options restored(const std::vector<double>& v) {
  return {static_cast<int64_t>(v[0]), v[1],
          std::isinf(v[2]) ? std::nullopt : std::optional<double>(v[2]), v[3], v[4] != 0};
}

// Defines the kernels of the autograd keys; see autograd.cpp.
void register_autograd(torch::Library& library);
void register_version_counting(torch::Library& library);

}  // namespace opwright
