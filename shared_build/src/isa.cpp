// Chooses the instruction-set level of this process; see isa.h.
#include "opwright/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace opwright {
namespace {

Level widest_supported() {
#if defined(OPWRIGHT_HAVE_NEON)
  return Level::kNeon;
#else
#if defined(OPWRIGHT_HAVE_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return Level::kAvx512;
  }
#endif
#if defined(OPWRIGHT_HAVE_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return Level::kAvx2;
  }
#endif
  return Level::kDefault;
#endif
}

Level choose() {
  const Level widest = widest_supported();
  const char* wanted = std::getenv("OPWRIGHT_CPU_CAPABILITY");
  if (wanted == nullptr || *wanted == '\0') return widest;
  struct Name {
    const char* text;
    Level level;
  };
  constexpr Name kNames[] = {{"default", Level::kDefault},
                             {"avx2", Level::kAvx2},
                             {"avx512", Level::kAvx512},
                             {"neon", Level::kNeon}};
  for (const Name& name : kNames) {
    if (std::strcmp(wanted, name.text) != 0) continue;
    // A wider level than the processor has would crash; a level of another architecture is not
    // compiled.
    if (name.level == Level::kNeon || widest == Level::kNeon) return widest;
    return name.level < widest ? name.level : widest;
  }
  throw std::invalid_argument(
      std::string(
          "opwright: expected OPWRIGHT_CPU_CAPABILITY in default, avx2, avx512, neon, but got ") +
      wanted);
}

}  // namespace

Level current_level() {
  static const Level level = choose();
  return level;
}

}  // namespace opwright
