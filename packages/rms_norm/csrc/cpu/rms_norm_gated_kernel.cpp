// Gated RMSNorm on the CPU. Formula and types: rms_norm.h.
//
// A row is one group of the last dimension. With the gate first, v = x * act(gate) is kept in a
// scratch row of the arithmetic's type, so that the activation is computed once; with the norm
// first, v is x itself. Bytes moved: input, gate and output once. The activation costs about 20
// FLOPs an element, which makes bf16 bound by arithmetic. Threads share out rows; nothing is summed
// across rows but the weight's gradient, by parts as in rms_norm_kernel.cpp.
#include "opwright/dispatch.h"
#include "opwright/parallel.h"
#include "opwright/simd_math.h"
#include "rms_norm_rows.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

// act(z) and its derivative. silu(z) = z * sigmoid(z).
template <Activation kActivation, class A>
Pair<A> activate(Pair<A> z) {
  const Pair<A> sigma = {sigmoid(z.lo), sigmoid(z.hi)};
  if constexpr (kActivation == Activation::kSigmoid) return sigma;
  return z * sigma;
}

template <class A>
struct ValueAndSlope {
  Pair<A> value, slope;
};

template <Activation kActivation, class A>
ValueAndSlope<A> activate_with_slope(Pair<A> z) {
  const Pair<A> one = pair<A>(1);
  const Pair<A> sigma = {sigmoid(z.lo), sigmoid(z.hi)};
  if constexpr (kActivation == Activation::kSigmoid) return {sigma, sigma * (one - sigma)};
  return {z * sigma, sigma * fma(z, one - sigma, one)};
}

// v = x * act(z), or x without a gate, into `v`; returns the sum of squares.
template <Activation kActivation, class A, class T>
double gate_and_sum_of_squares(const T* x, const T* z, A* v, int64_t n) {
  return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> sum) {
    Pair<A> gated = block.load(x + i);
    if (z) gated = gated * activate<kActivation>(block.load(z + i));
    block.store(v + i, gated);
    return fma(gated, gated, sum);
  });
}

template <class T, class P, class O, Rounding kRounding, Activation kActivation>
void gated_forward(const RmsNormGatedForward& p) {
  using A = accumulate_t<T>;
  A* rstd = static_cast<A*>(p.rstd);
  const int64_t bytes = p.columns * int64_t{2 * sizeof(T) + sizeof(O)};
  parallel_for(p.rows, grain_for_bytes(bytes), [&](int64_t begin, int64_t end) {
    const FenceAtEnd fence(p.stream_stores);
    RowReader<T> input(p.input, p.input_layout, p.columns, begin, end);
    RowReader<T> gate(p.gate, p.gate_layout, p.columns, begin, end);
    const Scratch<A> scratch(p.columns);
    A* v = scratch.data();
    for (int64_t row = begin; row < end; ++row) {
      const T* x = input.row(row);
      const T* z = p.gate ? gate.row(row) : nullptr;
      const T* gate_first = p.norm_before_gate ? nullptr : z;
      const T* gate_last = p.norm_before_gate ? z : nullptr;
      const double sum = row_sum(p.columns, [&](int64_t c, int64_t n) {
        return gate_and_sum_of_squares<kActivation>(x + c, at(gate_first, c), v + c, n);
      });
      const A r = static_cast<A>(reciprocal_rms(sum, p.columns, p.eps));
      if (rstd) rstd[row] = r;
      const A* s = weight_row<A>(p.weight, row, p.groups, p.columns);
      O* y = static_cast<O*>(p.output) + row * p.columns;
      const bool stream = p.stream_stores && can_stream(y);
      const Pair<A> rs = pair<A>(r);
      for_each_block<A>(p.columns, [&](int64_t i, auto block) {
        Pair<A> out = scaled<T, kRounding>(block.load(v + i), rs, load_scale(s, i, block));
        if (gate_last) {
          // In llama mode the product with the weight is a tensor of its own, rounded to promote(T,
          // W).
          if constexpr (kRounding == Rounding::kLlama) out = round_to<P>(out);
          out = out * activate<kActivation>(block.load(gate_last + i));
        }
        write(y + i, out, block, stream);
      });
    }
  });
}

template <class T, class O, Activation kActivation>
void gated_backward(const RmsNormGatedBackward& p) {
  using A = accumulate_t<T>;
  const A* rstd = static_cast<const A*>(p.rstd);
  const int64_t weight_size = p.groups * p.columns;
  parallel_for(p.parts, 1, [&](int64_t first_part, int64_t last_part) {
    const Scratch<A> scratch(p.columns * 2);
    A* normal = scratch.data();            // x^ = v * r
    A* grad = scratch.data() + p.columns;  // g, the gradient at x^
    for (int64_t part = first_part; part < last_part; ++part) {
      const int64_t begin = p.rows * part / p.parts, end = p.rows * (part + 1) / p.parts;
      RowReader<O> grad_output(p.grad_output, p.grad_output_layout, p.columns, begin, end);
      RowReader<T> input(p.input, p.input_layout, p.columns, begin, end);
      RowReader<T> gate(p.gate, p.gate_layout, p.columns, begin, end);
      A* sums = p.partial ? static_cast<A*>(p.partial) + part * weight_size : nullptr;
      if (sums) {
        for (int64_t i = 0; i < weight_size; ++i) sums[i] = 0;
      }
      for (int64_t row = begin; row < end; ++row) {
        const O* dy = grad_output.row(row);
        const T* x = input.row(row);
        const T* z = p.gate ? gate.row(row) : nullptr;
        const A* s = weight_row<A>(p.weight, row, p.groups, p.columns);
        A* ds = sums ? sums + row % p.groups * p.columns : nullptr;
        T* dx = p.grad_input ? static_cast<T*>(p.grad_input) + row * p.columns : nullptr;
        T* dz = p.grad_gate ? static_cast<T*>(p.grad_gate) + row * p.columns : nullptr;
        const bool gate_first = z && !p.norm_before_gate, gate_last = z && p.norm_before_gate;
        const Pair<A> rs = pair<A>(rstd[row]);

        const double sum = row_sum(p.columns, [&](int64_t c, int64_t n) {
          return sum_over_blocks<A>(n, [&](int64_t i, auto block, Pair<A> products) {
            Pair<A> hat = block.load(x + c + i), g = block.load(dy + c + i);
            if (gate_first) hat = hat * activate<kActivation>(block.load(z + c + i));
            hat = hat * rs;
            const Pair<A> scale = load_scale(s, c + i, block);
            if (gate_last) {
              const auto act = activate_with_slope<kActivation>(block.load(z + c + i));
              if (dz) block.store(dz + c + i, g * (hat * scale) * act.slope);
              g = g * act.value;
            }
            if (ds) block.store(ds + c + i, fma(g, hat, block.load(ds + c + i)));
            g = g * scale;
            block.store(normal + c + i, hat);
            block.store(grad + c + i, g);
            return fma(g, hat, products);
          });
        });
        if (!dx && !(dz && gate_first)) continue;

        const Pair<A> minus_mean = pair<A>(static_cast<A>(-sum / static_cast<double>(p.columns)));
        for_each_block<A>(p.columns, [&](int64_t i, auto block) {
          Pair<A> dv = fma(block.load(normal + i), minus_mean, block.load(grad + i)) * rs;
          if (gate_first) {
            const auto act = activate_with_slope<kActivation>(block.load(z + i));
            if (dz) block.store(dz + i, dv * block.load(x + i) * act.slope);
            dv = dv * act.value;
          }
          if (dx) block.store(dx + i, dv);
        });
      }
    }
  });
}

// ---- dispatch -----------------------------------------------------------------------------------

template <class F>
void with_activation(Activation activation, const F& f) {
  if (activation == Activation::kSilu) return f(Constant<Activation::kSilu>{});
  f(Constant<Activation::kSigmoid>{});
}

}  // namespace

void rms_norm_gated_forward(const RmsNormGatedForward& p) {
  with_type(p.input_type, [&](auto input) {
    using T = typename decltype(input)::type;
    with_activation(p.activation, [&](auto activation) {
      constexpr Activation kAct = activation.value;
      if constexpr (!kLow<T>) {
        gated_forward<T, T, T, Rounding::kOnce, kAct>(p);
      } else if (p.rounding == Rounding::kOnce) {
        gated_forward<T, T, T, Rounding::kOnce, kAct>(p);
      } else if (p.weight_type == p.input_type) {
        gated_forward<T, T, T, Rounding::kLlama, kAct>(p);
      } else if (p.output_type == p.input_type) {
        gated_forward<T, float, T, Rounding::kLlama, kAct>(p);
      } else {
        gated_forward<T, float, float, Rounding::kLlama, kAct>(p);
      }
    });
  });
}

void rms_norm_gated_backward(const RmsNormGatedBackward& p) {
  with_type(p.input_type, [&](auto input) {
    using T = typename decltype(input)::type;
    with_activation(p.activation, [&](auto activation) {
      if (p.output_type == kDType<T>) return gated_backward<T, T, activation.value>(p);
      if constexpr (kLow<T>) gated_backward<T, float, activation.value>(p);
    });
  });
}

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
