// The size of the last-level cache, for the choice of streaming stores; see beyond_caches in
// stable.h.
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>

namespace opwright {
namespace {

// Size of the last-level cache that a processor of this machine sees, or 0. Linux's own account
// comes first: on a virtual machine the processor may tell of all caches of the host.
int64_t cache_size() {
  int64_t kibibytes = 0;
  if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
    if (std::fscanf(file, "%" SCNd64 "K", &kibibytes) != 1) kibibytes = 0;
    std::fclose(file);
  }
  if (kibibytes > 0) return kibibytes * 1024;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  return sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
  return 0;
#endif
}

}  // namespace

int64_t last_level_cache() {
  constexpr int64_t kUsual = int64_t{32} << 20;
  static const int64_t bytes = [] {
    const int64_t size = cache_size();
    return size > 0 ? size : kUsual;
  }();
  return bytes;
}

}  // namespace opwright
