// Sums across the threads of a warp and of a row. Included by device.h.
#pragma once

namespace opwright {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

// The sum over a warp, the same bits in every lane.
template <class A>
OPWRIGHT_DEVICE A warp_sum(A x) {
  OPWRIGHT_UNROLL
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, distance);
  }
  return x;
}

// finish(sum over the threads that share threadIdx.y), the same bits in all of them. There are
// either kWarp of them, or they are the whole block and all of them call; `scratch` then holds
// kWarp + 1 doubles. One thread calls finish. The order of the sum depends on blockDim alone.
template <class A, class F>
OPWRIGHT_DEVICE A row_sum(double x, const Shared<double>& scratch, const F& finish) {
  const double sum = warp_sum(x);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (warps == 1) {
    A result = 0;
    if (lane == 0) result = finish(sum);
    return __shfl_sync(kWholeWarp, result, 0);
  }
  if (lane == 0) scratch.store(warp, sum);
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int i = 0; i < warps; ++i) total += scratch.load(i);
    scratch.store(kWarp, static_cast<double>(finish(total)));
  }
  // The next call writes below kWarp only after this barrier, and the result after one more.
  __syncthreads();
  return static_cast<A>(scratch.load(kWarp));
}

}  // namespace opwright
