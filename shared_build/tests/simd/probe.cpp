// What the tests call: every function of simd.h and simd_math.h with a C interface, compiled once
// per level. Arrays are processed as kernels do it: whole vectors, then one partial vector.
#include "opwright/simd_math.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class A, class F>
void apply(const A* in, A* out, std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>) store(out + i, f(load<A>(in + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_partial(out + i, f(load_partial<A>(in + i, rest)), rest);
  }
}

template <class A, class F>
void apply3(const A* a, const A* b, const A* c, A* out, std::int64_t n, F f) {
  for (std::int64_t i = 0; i + kLanes<A> <= n; i += kLanes<A>) {
    store(out + i, f(load<A>(a + i), load<A>(b + i), load<A>(c + i)));
  }
}

template <class A, class S>
void load_some(const S* from, A* to, int n, int form) {
  Vec<A> low{}, high{};
  if (form == 0) low = load<A>(from);
  if (form == 1) low = load_partial<A>(from, n);
  if (form == 2) load2<A>(from, low, high);
  store(to, low);
  store(to + kLanes<A>, high);
}

template <class A, class S>
void store_some(const A* from, S* to, int n, int form) {
  const Vec<A> low = load<A>(from), high = load<A>(from + kLanes<A>);
  if (form == 0) store(to, low);
  if (form == 1) store_partial(to, low, n);
  if (form == 2) store2(to, low, high);
  if (form == 3) {
    stream2(to, low, high);
    stream_fence();
  }
}

template <class A, class S>
void round_some(const A* from, A* to, std::int64_t n) {
  apply(from, to, n, [](Vec<A> x) { return round_to<S>(x); });
}

template <class A, class S>
void narrow_each(const A* from, S* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = from_accumulate<S>(from[i]);
}

template <class A, class S>
void widen_each(const S* from, A* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_accumulate<A>(from[i]);
}

template <class A>
A reduce_one(const A* from, int operation) {
  const Vec<A> x = load<A>(from);
  if (operation == 0) return reduce_add(x);
  return operation == 1 ? reduce_max(x) : reduce_min(x);
}

// 0: any, 1: all, of the lanes where a < b
template <class A>
int test_mask(const A* a, const A* b, int operation) {
  const auto mask = load<A>(a) < load<A>(b);
  return operation == 0 ? any(mask) : all(mask);
}

template <class A>
void combine(const A* a, const A* b, const A* c, A* out, std::int64_t n, int operation) {
  apply3(a, b, c, out, n, [operation](Vec<A> x, Vec<A> y, Vec<A> z) {
    switch (operation) {
      case 0:
        return fma(x, y, z);
      case 1:
        return max(x, y);
      case 2:
        return min(x, y);
      case 3:
        return abs(x);
      case 4:
        return select(x < y, y, z);
      default:
        return sqrt(x);
    }
  });
}

}  // namespace

extern "C" {
#define PROBE [[gnu::visibility("default")]]

PROBE int vector_bytes() { return kVectorBytes; }
PROBE int stream_alignment() { return kStreamAlignment; }
PROBE int fused() { return kFusedMultiplyAdd; }

#define PROBE_UNARY(name)                                                   \
  PROBE void float_##name(const float* in, float* out, std::int64_t n) {    \
    apply(in, out, n, [](Vec<float> x) { return name(x); });                \
  }                                                                         \
  PROBE void double_##name(const double* in, double* out, std::int64_t n) { \
    apply(in, out, n, [](Vec<double> x) { return name(x); });               \
  }
PROBE_UNARY(exp)
PROBE_UNARY(expm1)
PROBE_UNARY(log)
PROBE_UNARY(log1p)
PROBE_UNARY(sigmoid)
PROBE_UNARY(silu)
PROBE_UNARY(tanh)
PROBE_UNARY(softplus)
PROBE_UNARY(erf)
PROBE_UNARY(sin)
PROBE_UNARY(cos)
PROBE_UNARY(rsqrt)

#define PROBE_TYPE(A)                                                                          \
  PROBE void A##_softplus_threshold(const A* in, A* out, std::int64_t n, A beta, A limit) {    \
    apply(in, out, n, [=](Vec<A> x) { return softplus(x, beta, limit); });                     \
  }                                                                                            \
  PROBE void A##_combine(const A* a, const A* b, const A* c, A* out, std::int64_t n, int op) { \
    combine(a, b, c, out, n, op);                                                              \
  }                                                                                            \
  PROBE A A##_reduce(const A* from, int op) { return reduce_one(from, op); }                   \
  PROBE int A##_mask(const A* a, const A* b, int op) { return test_mask(a, b, op); }           \
  PROBE void A##_splat(A x, A* out) { store(out, splat<A>(x)); }
PROBE_TYPE(float)
PROBE_TYPE(double)

#define PROBE_STORAGE(A, S)                                                                        \
  PROBE void A##_load_##S(const S* from, A* to, int n, int form) { load_some(from, to, n, form); } \
  PROBE void A##_store_##S(const A* from, S* to, int n, int form) {                                \
    store_some(from, to, n, form);                                                                 \
  }                                                                                                \
  PROBE void A##_round_##S(const A* from, A* to, std::int64_t n) {                                 \
    round_some<A, S>(from, to, n);                                                                 \
  }                                                                                                \
  PROBE void A##_narrow_##S(const A* from, S* to, std::int64_t n) { narrow_each(from, to, n); }    \
  PROBE void A##_widen_##S(const S* from, A* to, std::int64_t n) { widen_each(from, to, n); }
PROBE_STORAGE(float, float)
PROBE_STORAGE(float, BFloat16)
PROBE_STORAGE(float, Half)
PROBE_STORAGE(double, double)
PROBE_STORAGE(double, float)
PROBE_STORAGE(double, BFloat16)
PROBE_STORAGE(double, Half)
}  // extern "C"

}  // namespace OPWRIGHT_ISA
}  // namespace opwright
