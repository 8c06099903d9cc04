// Gated RMSNorm on CUDA devices. Formula and types: rms_norm.h; rows and work as in
// rms_norm_kernel.cuh.
//
// With the gate first, v = x * act(gate) waits in shared memory between its two uses; with the norm
// first, v is x. Bytes moved: forward, input, gate and output once; backward, grad_output, input
// and gate, and the two gradients. In the backward the activation is computed in each of the two
// passes where both need it, about 25 FLOPs an element, which a device has to spare.
#pragma once

#include "rms_norm_rows.cuh"

namespace opwright {
namespace {

OPWRIGHT_DEVICE float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }
OPWRIGHT_DEVICE double sigmoid(double z) { return 1.0 / (1.0 + exp(-z)); }

// act(z) and its derivative; silu(z) = z * sigmoid(z).
template <class A>
struct Activated {
  A value, slope;
};
template <class A>
OPWRIGHT_DEVICE Activated<A> activate(Activation activation, A z) {
  const A sigma = sigmoid(z), rest = A{1} - sigma;
  if (activation == Activation::kSigmoid) return {sigma, sigma * rest};
  return {z * sigma, sigma * fma(z, rest, A{1})};
}

// `round_product`: in llama mode with the norm first, the product with the weight is a tensor of
// its own, of the input's type if the weight does not promote it.
template <class In, class Out>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kMostRowThreads)
    gated_forward_kernel(const RmsNormGatedForward p, bool keep, bool round_product) {
  using A = typename In::Accumulate;
  constexpr int kWidth = In::kWidth;
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  OPWRIGHT_DYNAMIC_SHARED(char, dynamic);
  const int64_t kept_bytes = shared_row_bytes(p.columns, kWidth, sizeof(A));
  KeptRow<A, A, kWidth> kept;
  if (keep) kept.memory = dynamic.template from<A>(threadIdx.y * kept_bytes);
  A* rstd = static_cast<A*>(p.rstd);

  const Work work = work_of_thread();
  for (int64_t row = work.first; row < p.rows; row += work.step) {
    const In x = row_at<In>(p.input, p.input_type, p.input_layout, row, p.columns);
    const In z = row_at<In>(p.gate, p.input_type, p.gate_layout, row, p.columns);
    const Out y = dense_row_at<Out>(p.output, p.output_type, row, p.columns);
    const bool gate_first = z && !p.norm_before_gate, gate_last = z && p.norm_before_gate;
    const auto times_gate = [&](const Pack<A, kWidth>& v, int64_t column) {
      const auto gate = z.load(column);
      return map<A, kWidth>(
          [&](int i) { return v.value[i] * activate(p.activation, gate.value[i]).value; });
    };
    const auto value = [&](int64_t column) {
      const auto v = x.load(column);
      return gate_first ? times_gate(v, column) : v;
    };
    double sum = 0;
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      const auto v = value(column);
      if (kept) kept.store(column, v);
      sum += sum_of_products(v, v);
    });
    const A r = row_sum<A>(sum, scratch, [&](double total) {
      return static_cast<A>(reciprocal_rms(total, p.columns, p.eps));
    });
    if (rstd && threadIdx.x == 0) store_global(rstd + row, r);
    const A* s = weight_row<A>(p.weight, row, p.groups, p.columns);
    for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
      const auto v = kept ? kept.load(column) : value(column);
      const auto weight = load_weight<In::kVector, kWidth>(s, column, p.columns);
      auto out = map<A, kWidth>([&](int i) {
        A normal = v.value[i] * r;
        if (p.rounding == Rounding::kLlama) normal = x.round(normal);
        normal *= weight.value[i];
        return round_product ? x.round(normal) : normal;
      });
      if (gate_last) out = times_gate(out, column);
      y.store(column, out);
    });
  }
}

// dy, x and z wait in shared memory between the two passes, and the sums of the weight's gradient.
struct GatedBackwardMemory {
  bool keep_rows, keep_sums;
};

constexpr int kMostGatedBackwardThreads = 256;  // more would leave too few registers for each

template <class In, class Grad>
OPWRIGHT_KERNEL void OPWRIGHT_BOUNDS(kMostGatedBackwardThreads)
    gated_backward_kernel(const RmsNormGatedBackward p, int64_t parts, GatedBackwardMemory fits) {
  using A = typename In::Accumulate;
  using T = typename In::Element;
  using G = typename Grad::Element;
  constexpr int kWidth = In::kWidth;
  OPWRIGHT_SHARED(double, scratch, kWarp + 1);
  OPWRIGHT_DYNAMIC_SHARED(char, dynamic);
  const auto row_bytes_of = [&](int64_t element_bytes) {
    return shared_row_bytes(p.columns, kWidth, element_bytes);
  };
  const int64_t sum_bytes = fits.keep_sums ? row_bytes_of(sizeof(A)) : 0;
  const int64_t row_bytes = fits.keep_rows ? row_bytes_of(sizeof(T)) : 0;
  const int64_t grad_bytes = fits.keep_rows ? row_bytes_of(sizeof(G)) : 0;
  const int64_t own = threadIdx.y * (sum_bytes + 2 * row_bytes + grad_bytes);
  KeptRow<A, T, kWidth> kept_input, kept_gate;
  KeptRow<A, G, kWidth> kept_grad;
  WeightSums<A, kWidth, In::kVector> sums{nullptr, {}, p.columns};
  if (fits.keep_sums) sums.memory = dynamic.template from<A>(own);
  if (fits.keep_rows) {
    kept_input.memory = dynamic.template from<T>(own + sum_bytes);
    kept_gate.memory = dynamic.template from<T>(own + sum_bytes + row_bytes);
    kept_grad.memory = dynamic.template from<G>(own + sum_bytes + 2 * row_bytes);
  }
  const A* rstd = static_cast<const A*>(p.rstd);
  const int64_t groups = p.partial ? p.groups : 1;

  const Work work = work_of_thread();
  for (int64_t task = work.first; task < parts * groups; task += work.step) {
    const int64_t part = task / groups, group = task % groups;
    const int64_t begin = part_begin(p.rows, part, parts);
    const int64_t end = part_begin(p.rows, part + 1, parts);
    sums.target = plus<A>(p.partial, task * p.columns);
    sums.clear();
    for (int64_t row = first_row_of(begin, group, groups); row < end; row += groups) {
      const Grad dy =
          row_at<Grad>(p.grad_output, p.output_type, p.grad_output_layout, row, p.columns);
      const In x = row_at<In>(p.input, p.input_type, p.input_layout, row, p.columns);
      const In z = row_at<In>(p.gate, p.input_type, p.gate_layout, row, p.columns);
      const In dx = dense_row_at<In>(p.grad_input, p.input_type, row, p.columns);
      const In dz = dense_row_at<In>(p.grad_gate, p.input_type, row, p.columns);
      const A* s = weight_row<A>(p.weight, row, p.groups, p.columns);
      const A r = load_global(rstd + row);
      const bool gate_first = z && !p.norm_before_gate, gate_last = z && p.norm_before_gate;

      // x^ and g, the gradient at x^, of one element from dy, x, act(z) and the weight.
      const auto normal_of = [&](A value, A act) { return (gate_first ? value * act : value) * r; };
      const auto grad_of = [&](A grad, A act) { return gate_last ? grad * act : grad; };
      double sum = 0;
      for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
        const auto weight = load_weight<In::kVector, kWidth>(s, column, p.columns);
        auto grad = load_and_keep(dy, kept_grad, column);
        auto normal = load_and_keep(x, kept_input, column);
        Pack<A, kWidth> gate{}, grad_gate{};
        if (z) gate = load_and_keep(z, kept_gate, column);
        OPWRIGHT_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          const auto act = activate(p.activation, gate.value[i]);
          normal.value[i] = normal_of(normal.value[i], act.value);
          grad_gate.value[i] = grad.value[i] * (normal.value[i] * weight.value[i]) * act.slope;
          grad.value[i] = grad_of(grad.value[i], act.value);
        }
        if (gate_last && dz) dz.store(column, grad_gate);
        if (sums) sums.add(column, grad, normal);
        const auto weighed = map<A, kWidth>([&](int i) { return grad.value[i] * weight.value[i]; });
        sum += sum_of_products(weighed, normal);
      });
      if (!dx && !(gate_first && dz)) continue;

      const A mean = row_sum<A>(sum, scratch, [&](double total) {
        return static_cast<A>(total / static_cast<double>(p.columns));
      });
      for_each_chunk<kWidth>(p.columns, [&](int64_t column) {
        const auto weight = load_weight<In::kVector, kWidth>(s, column, p.columns);
        const auto grad = load_again(dy, kept_grad, column);
        const auto value = load_again(x, kept_input, column);
        Pack<A, kWidth> gate{}, grad_value, grad_gate;
        if (z) gate = load_again(z, kept_gate, column);
        OPWRIGHT_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          const auto act = activate(p.activation, gate.value[i]);
          const A normal = normal_of(value.value[i], act.value);
          const A weighed = grad_of(grad.value[i], act.value) * weight.value[i];
          const A dv = fma(normal, -mean, weighed) * r;
          grad_gate.value[i] = dv * value.value[i] * act.slope;
          grad_value.value[i] = gate_first ? dv * act.value : dv;
        }
        if (gate_first && dz) dz.store(column, grad_gate);
        if (dx) dx.store(column, grad_value);
      });
    }
    sums.finish();
  }
}

}  // namespace
}  // namespace opwright
