// y = act(gate) * up on the CPU, with clamps, and its gradients. Formula: gated_activation.h.
//
// Bytes moved: gate and up read once, y written once (three streams); backward reads three streams
// and writes two. Operations an element: about 20 forward and 30 backward for the logistic
// activations, so that in fp32 memory sets the pace and in bf16 and fp16 arithmetic does: there the
// polynomials are shorter (gated_activation_math.h).
//
// A row is walked in blocks of two vectors; the elements before a streamable address and those
// behind the last whole block go through a block of their own on the stack, with the same
// arithmetic, so a result depends on nothing but its operands. Every element is on its own: threads
// share them out as they like. A result may take the place of an operand: a block is read before it
// is written.
#include "gated_activation_math.h"
#include "gated_activation_rows.h"
#include "opwright/dispatch.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class A, class T>
OPWRIGHT_INLINE void prefetch_ahead(const T* from) {
  prefetch_block<A>(from + kBytesAhead / int64_t{sizeof(T)});
}

// ---- one pair of vectors ------------------------------------------------------------------------

// The options as vectors; alpha with the unit of the activations' arguments.
template <class T, class A = accumulate_t<T>>
struct Scalars {
  Vec<A> alpha, gate_limit, output_limit, up_limit, up_offset;

  explicit OPWRIGHT_INLINE Scalars(const GatedActivation& p)
      : alpha(splat(static_cast<A>(p.alpha * double{kUnit<T>}))),
        gate_limit(splat(static_cast<A>(p.gate_limit))),
        output_limit(splat(static_cast<A>(p.output_limit))),
        up_limit(splat(static_cast<A>(p.up_limit))),
        // -0 changes nothing, not even the sign of a zero.
        up_offset(splat(p.up_offset == 0 ? A(-0.0) : static_cast<A>(p.up_offset))) {}
};

// Each lane at most `bound`. NaN stays.
template <class A>
OPWRIGHT_INLINE Pair<A> at_most(Vec<A> bound, Pair<A> x) {
  return {lesser_or_second(bound, x.lo), lesser_or_second(bound, x.hi)};
}

// The up branch, bounded and moved.
template <class T, bool kClamped, class A>
OPWRIGHT_INLINE Pair<A> moved(Pair<A> up, const Scalars<T>& s) {
  if constexpr (kClamped) {
    up = at_most<A>(s.up_limit,
                    {greater_or_second(-s.up_limit, up.lo), greater_or_second(-s.up_limit, up.hi)});
  }
  return {up.lo + s.up_offset, up.hi + s.up_offset};
}

template <class T, Activation kActivation, bool kClamped, class A>
OPWRIGHT_INLINE Pair<A> value(Pair<A> gate, Pair<A> up, const Scalars<T>& s) {
  if constexpr (kClamped) gate = at_most<A>(s.gate_limit, gate);
  Pair<A> a = activate<T, kActivation>(gate, s.alpha);
  if constexpr (kClamped) a = at_most<A>(s.output_limit, a);
  return a * moved<T, kClamped>(up, s);
}

template <class A>
struct Gradients {
  Pair<A> gate, up;
};

template <class T, Activation kActivation, bool kClamped, class A>
OPWRIGHT_INLINE Gradients<A> gradients(Pair<A> grad, Pair<A> gate, Pair<A> up,
                                       const Scalars<T>& s) {
  if constexpr (!kClamped) {
    const auto a = activate_with_slope<T, kActivation>(gate, s.alpha);
    return {grad * moved<T, kClamped>(up, s) * a.slope, grad * a.value};
  } else {
    const auto a = activate_with_slope<T, kActivation>(at_most<A>(s.gate_limit, gate), s.alpha);
    const Pair<A> of_gate = grad * moved<T, kClamped>(up, s) * a.slope;
    const Pair<A> of_up = grad * at_most<A>(s.output_limit, a.value);
    const Vec<A> zero = splat<A>(0);
    const auto gate_passes = [&](Vec<A> x, Vec<A> y) __attribute__((always_inline)) {
      return (x <= s.gate_limit) & (y <= s.output_limit);
    };
    return {{select(gate_passes(gate.lo, a.value.lo), of_gate.lo, zero),
             select(gate_passes(gate.hi, a.value.hi), of_gate.hi, zero)},
            {select(abs(up.lo) <= s.up_limit, of_up.lo, zero),
             select(abs(up.hi) <= s.up_limit, of_up.hi, zero)}};
  }
}

// ---- one contiguous row -------------------------------------------------------------------------

template <class T>
using ForwardRow = void (*)(const GatedActivation&, T*, const T*, const T*, int64_t, bool, bool);
template <class T>
using BackwardRow = void (*)(const GatedActivation&, T*, T*, const T*, const T*, const T*, int64_t,
                             bool);

template <class T>
OPWRIGHT_INLINE void copy_some(T* to, const T* from, int64_t n) {
  gather(to, reinterpret_cast<const char*>(from), sizeof(T), n);
}

template <class T, Activation kActivation, bool kClamped>
void forward_row(const GatedActivation& p, T* y, const T* gate, const T* up, int64_t n, bool stream,
                 bool ahead) {
  using A = accumulate_t<T>;
  const Scalars<T> s(p);
  const FullBlock<A> block;
  const auto one = [&](T* to, const T* g, const T* u, bool streamed)
                       __attribute__((always_inline)) {
                         const Pair<A> x = block.load(g), w = block.load(u);
                         const Pair<A> result = value<T, kActivation, kClamped>(x, w, s);
                         if (streamed) {
                           block.stream(to, result);
                         } else {
                           block.store(to, result);
                         }
                       };
  int64_t i = 0;
  stream = stream && can_align(y);
  const int64_t head = stream ? smaller(until_aligned(y), n) : 0;
  for (;;) {
    if (i >= head) {
      if (stream) {
        for (; i + kBlock<A> <= n; i += kBlock<A>) {
          if (ahead) {
            prefetch_ahead<A>(gate + i);
            prefetch_ahead<A>(up + i);
          }
          one(y + i, gate + i, up + i, true);
        }
      } else {
        for (; i + kBlock<A> <= n; i += kBlock<A>) one(y + i, gate + i, up + i, false);
      }
    }
    if (i >= n) return;
    const int64_t count = i < head ? head : n - i;
    T x[kBlock<A>] = {}, w[kBlock<A>] = {}, result[kBlock<A>];
    copy_some(x, gate + i, count);
    copy_some(w, up + i, count);
    one(result, x, w, false);
    copy_some(y + i, result, count);
    i += count;
  }
}

template <class T, Activation kActivation, bool kClamped>
void backward_row(const GatedActivation& p, T* grad_gate, T* grad_up, const T* grad, const T* gate,
                  const T* up, int64_t n, bool stream) {
  using A = accumulate_t<T>;
  const Scalars<T> s(p);
  const FullBlock<A> block;
  const auto one = [&](T* to_gate, T* to_up, const T* dy, const T* g, const T* u,
                       bool streamed) __attribute__((always_inline)) {
    const Pair<A> d = block.load(dy), x = block.load(g), w = block.load(u);
    const auto [of_gate, of_up] = gradients<T, kActivation, kClamped>(d, x, w, s);
    if (streamed) {
      if (to_gate) block.stream(to_gate, of_gate);
      if (to_up) block.stream(to_up, of_up);
    } else {
      if (to_gate) block.store(to_gate, of_gate);
      if (to_up) block.store(to_up, of_up);
    }
  };
  // Both results must reach an aligned address together to be streamed.
  const T* first = grad_gate ? grad_gate : grad_up;
  const int64_t lead = until_aligned(first);
  stream = stream && can_align(first) &&
           (!grad_up || (can_align(grad_up) && until_aligned(grad_up) == lead));
  const int64_t head = stream ? smaller(lead, n) : 0;
  const auto at = [](T* row, int64_t i) { return row ? row + i : nullptr; };
  int64_t i = 0;
  for (;;) {
    if (i >= head) {
      for (; i + kBlock<A> <= n; i += kBlock<A>) {
        if (stream) {
          prefetch_ahead<A>(grad + i);
          prefetch_ahead<A>(gate + i);
          prefetch_ahead<A>(up + i);
        }
        one(at(grad_gate, i), at(grad_up, i), grad + i, gate + i, up + i, stream);
      }
    }
    if (i >= n) return;
    const int64_t count = i < head ? head : n - i;
    T d[kBlock<A>] = {}, x[kBlock<A>] = {}, w[kBlock<A>] = {}, of_gate[kBlock<A>], of_up[kBlock<A>];
    copy_some(d, grad + i, count);
    copy_some(x, gate + i, count);
    copy_some(w, up + i, count);
    one(of_gate, of_up, d, x, w, false);
    if (grad_gate) copy_some(grad_gate + i, of_gate, count);
    if (grad_up) copy_some(grad_up + i, of_up, count);
    i += count;
  }
}

// ---- blocks of strided rows ---------------------------------------------------------------------

// gate and up of `n` elements from element i on, where they lie or in `x` and `w`.
template <class T>
struct Inputs {
  const T* gate;
  const T* up;
};

template <class T>
Inputs<T> inputs(T* x, T* w, const char* gate, int64_t gate_stride, const char* up,
                 int64_t up_stride, int64_t n) {
  constexpr int64_t size = sizeof(T);
  if (alternate<T>(gate, gate_stride, up, up_stride)) {
    if (gate < up) {
      separate(x, w, gate, n);
    } else {
      separate(w, x, up, n);
    }
    return {x, w};
  }
  if (gate_stride != size) gather(x, gate, gate_stride, n);
  if (up_stride != size) gather(w, up, up_stride, n);
  return {gate_stride == size ? reinterpret_cast<const T*>(gate) : x,
          up_stride == size ? reinterpret_cast<const T*>(up) : w};
}

template <class T>
void forward_block(const GatedActivation& p, const Block2d& b, ForwardRow<T> row) {
  constexpr int64_t size = sizeof(T);
  const int64_t y_stride = b.strides[0], gate_stride = b.strides[1], up_stride = b.strides[2];
  const bool dense = y_stride == size && gate_stride == size && up_stride == size;
  const FenceAtEnd fence(p.stream_stores);
  for (int64_t outer = 0; outer < b.outer; ++outer) {
    char* y = b.data[0] + outer * b.strides[3];
    const char* gate = b.data[1] + outer * b.strides[4];
    const char* up = b.data[2] + outer * b.strides[5];
    if (dense) {
      row(p, reinterpret_cast<T*>(y), reinterpret_cast<const T*>(gate),
          reinterpret_cast<const T*>(up), b.inner, p.stream_stores, true);
      continue;
    }
    alignas(64) T x[kChunk], w[kChunk], result[kChunk];
    for (int64_t i = 0; i < b.inner; i += kChunk) {
      const int64_t n = smaller(kChunk, b.inner - i);
      const Inputs<T> in =
          inputs(x, w, gate + i * gate_stride, gate_stride, up + i * up_stride, up_stride, n);
      char* to = y + i * y_stride;
      if (y_stride == size) {
        row(p, reinterpret_cast<T*>(to), in.gate, in.up, n, p.stream_stores, false);
      } else {
        row(p, result, in.gate, in.up, n, false, false);
        scatter(to, result, y_stride, n);
      }
    }
  }
}

template <class T>
void backward_block(const GatedActivation& p, const Block2d& b, bool need_gate, bool need_up,
                    BackwardRow<T> row) {
  constexpr int64_t size = sizeof(T);
  const int outputs = need_gate + need_up, operands = outputs + 3;
  const int64_t* stride = b.strides;
  const int64_t dgate_stride = need_gate ? stride[0] : size;
  const int64_t dup_stride = need_up ? stride[outputs - 1] : size;
  const int64_t grad_stride = stride[outputs], gate_stride = stride[outputs + 1],
                up_stride = stride[outputs + 2];
  const bool dense = dgate_stride == size && dup_stride == size && grad_stride == size &&
                     gate_stride == size && up_stride == size;
  const FenceAtEnd fence(p.stream_stores);
  for (int64_t outer = 0; outer < b.outer; ++outer) {
    const auto start = [&](int k) { return b.data[k] + outer * stride[operands + k]; };
    char* dgate = need_gate ? start(0) : nullptr;
    char* dup = need_up ? start(outputs - 1) : nullptr;
    const char *grad = start(outputs), *gate = start(outputs + 1), *up = start(outputs + 2);
    if (dense) {
      row(p, reinterpret_cast<T*>(dgate), reinterpret_cast<T*>(dup),
          reinterpret_cast<const T*>(grad), reinterpret_cast<const T*>(gate),
          reinterpret_cast<const T*>(up), b.inner, p.stream_stores);
      continue;
    }
    alignas(64) T d[kChunk], x[kChunk], w[kChunk], of_gate[kChunk], of_up[kChunk];
    for (int64_t i = 0; i < b.inner; i += kChunk) {
      const int64_t n = smaller(kChunk, b.inner - i);
      const Inputs<T> in =
          inputs(x, w, gate + i * gate_stride, gate_stride, up + i * up_stride, up_stride, n);
      const char* from = grad + i * grad_stride;
      if (grad_stride != size) gather(d, from, grad_stride, n);
      const T* dy = grad_stride == size ? reinterpret_cast<const T*>(from) : d;
      char* to_gate = need_gate ? dgate + i * dgate_stride : nullptr;
      char* to_up = need_up ? dup + i * dup_stride : nullptr;
      const bool gate_here = need_gate && dgate_stride == size,
                 up_here = need_up && dup_stride == size;
      row(p,
          gate_here   ? reinterpret_cast<T*>(to_gate)
          : need_gate ? of_gate
                      : nullptr,
          up_here   ? reinterpret_cast<T*>(to_up)
          : need_up ? of_up
                    : nullptr,
          dy, in.gate, in.up, n, false);
      if (need_gate && need_up && alternate<T>(to_gate, dgate_stride, to_up, dup_stride)) {
        if (to_gate < to_up) {
          merge(to_gate, of_gate, of_up, n, p.stream_stores);
        } else {
          merge(to_up, of_up, of_gate, n, p.stream_stores);
        }
        continue;
      }
      if (need_gate && !gate_here) scatter(to_gate, of_gate, dgate_stride, n);
      if (need_up && !up_here) scatter(to_up, of_up, dup_stride, n);
    }
  }
}

// ---- dispatch: the one place where types become templates ---------------------------------------

template <class F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kSilu:
      return f(Constant<Activation::kSilu>{});
    case Activation::kGelu:
      return f(Constant<Activation::kGelu>{});
    case Activation::kGeluTanh:
      return f(Constant<Activation::kGeluTanh>{});
    case Activation::kRelu:
      return f(Constant<Activation::kRelu>{});
    case Activation::kRelu2:
      return f(Constant<Activation::kRelu2>{});
    case Activation::kSigmoid:
      return f(Constant<Activation::kSigmoid>{});
    case Activation::kIdentity:
      return f(Constant<Activation::kIdentity>{});
  }
}

void dispatch_forward(const GatedActivation& p, const Block2d& b) {
  with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_activation(p.activation, [&](auto activation) {
      forward_block<T>(p, b,
                       p.clamped ? forward_row<T, activation.value, true>
                                 : forward_row<T, activation.value, false>);
    });
  });
}

void dispatch_backward(const GatedActivation& p, const Block2d& b, bool need_gate, bool need_up) {
  with_type(p.type, [&](auto type) {
    using T = typename decltype(type)::type;
    with_activation(p.activation, [&](auto activation) {
      backward_block<T>(p, b, need_gate, need_up,
                        p.clamped ? backward_row<T, activation.value, true>
                                  : backward_row<T, activation.value, false>);
    });
  });
}

}  // namespace

extern const GatedActivationKernels gated_activation_kernels = {dispatch_forward,
                                                                dispatch_backward};

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
