// The size of the last-level cache, for the choice of streaming stores; see beyond_caches in
// stable.h.
#include <unistd.h>

#include <cstdint>

namespace opwright {

bool beyond_caches(int64_t bytes) {
  static const int64_t threshold = [] {
    int64_t size = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    if (size <= 0) size = int64_t{16} << 20;
    return size / 2;
  }();
  return bytes >= threshold;
}

}  // namespace opwright
