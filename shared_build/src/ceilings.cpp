// The exported functions of ceilings.h.
#include "opwright/ceilings.h"

#include <cstring>

#include "opwright/isa.h"
#include "opwright/parallel.h"

namespace opwright {

OPWRIGHT_DECLARE_TABLES(CeilingKernels, ceiling_kernels)

namespace {

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kCeilingLine == 0;
}

// No exception may leave a C function; the pool's own failures are the only ones there can be.
template <class F>
int32_t guarded(const F& f) noexcept {
  try {
    f();
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace
}  // namespace opwright

int32_t opwright_ceiling_copy(void* to, const void* from, int64_t bytes, int32_t mode) {
  using namespace opwright;
  if (bytes < 0 || bytes % kCeilingLine != 0 || !aligned(to) || !aligned(from) || mode < 0 ||
      mode > 2)
    return 1;
  return guarded([&] {
    const CeilingKernels& kernels = ceiling_kernels_for_level();
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    parallel_for(bytes / kCeilingLine, grain_for_bytes(2 * kCeilingLine),
                 [&](int64_t begin, int64_t end) {
                   const int64_t offset = begin * kCeilingLine, size = (end - begin) * kCeilingLine;
                   switch (static_cast<CopyMode>(mode)) {
                     case CopyMode::kMemcpy:
                       std::memcpy(target + offset, source + offset, static_cast<size_t>(size));
                       break;
                     case CopyMode::kStream:
                       kernels.stream(target + offset, source + offset, size);
                       break;
                     case CopyMode::kPlain:
                       kernels.plain(target + offset, source + offset, size);
                       break;
                   }
                 });
  });
}

int32_t opwright_ceiling_add(void* to, const void* a, const void* b, int64_t bytes, int32_t mode) {
  using namespace opwright;
  const bool stream = mode == static_cast<int32_t>(CopyMode::kStream);
  if (bytes < 0 || bytes % kCeilingLine != 0 || !aligned(to) || !aligned(a) || !aligned(b) ||
      (!stream && mode != static_cast<int32_t>(CopyMode::kPlain)))
    return 1;
  return guarded([&] {
    const CeilingKernels& kernels = ceiling_kernels_for_level();
    const auto add = stream ? kernels.add_stream : kernels.add_plain;
    parallel_for(bytes / kCeilingLine, grain_for_bytes(3 * kCeilingLine),
                 [&](int64_t begin, int64_t end) {
                   const int64_t offset = begin * kCeilingLine;
                   add(static_cast<char*>(to) + offset, static_cast<const char*>(a) + offset,
                       static_cast<const char*>(b) + offset, (end - begin) * kCeilingLine);
                 });
  });
}

int32_t opwright_ceiling_multiply_add(int64_t chains, int64_t steps, double* flops) {
  using namespace opwright;
  if (chains < 0 || steps < 0 || flops == nullptr) return 1;
  return guarded([&] {
    const CeilingKernels& kernels = ceiling_kernels_for_level();
    parallel_for(chains, 1, [&](int64_t begin, int64_t end) {
      // A call through the table: it cannot be left out, though nobody reads its result.
      for (int64_t i = begin; i < end; ++i) kernels.multiply_add(steps);
    });
    *flops = static_cast<double>(chains) * static_cast<double>(steps) *
             static_cast<double>(kernels.flops_per_step);
  });
}

int32_t opwright_ceiling_exp(float* to, const float* from, int64_t count, int64_t repeats) {
  using namespace opwright;
  if (count < 0 || repeats < 0 || (count > 0 && (to == nullptr || from == nullptr))) return 1;
  return guarded([&] {
    const CeilingKernels& kernels = ceiling_kernels_for_level();
    parallel_for(count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < repeats; ++i)
        kernels.exponential(to + begin, from + begin, end - begin);
    });
  });
}
