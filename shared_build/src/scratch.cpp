// Scratch memory of kernels; see rows.h.
#include <cstdlib>
#include <new>

#include "opwright/rows.h"

namespace opwright {

void* scratch_allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 64;
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* pointer = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

void scratch_free(void* pointer) { std::free(pointer); }

}  // namespace opwright
