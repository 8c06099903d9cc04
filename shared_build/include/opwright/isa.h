// Instruction-set levels: what a kernel file is compiled for, and which compiled level this process
// runs.
//
// A kernel source is compiled once per level into an object library of its own. The build defines,
// for each,
//   OPWRIGHT_ISA           isa_default | isa_avx2 | isa_avx512 | isa_neon, the level's namespace
//   OPWRIGHT_VECTOR_BYTES  16 | 32 | 64, the width of Vec<T> in simd.h
// and everything in it lives in `inline namespace OPWRIGHT_ISA { namespace { ... } }`, except the
// one table of function pointers that it exports. A symbol that two levels both defined could be
// merged by the linker into the wider one's code and would crash an older processor; so nothing in
// a kernel object is weak, and a test holds the objects to it.
#pragma once

#include <cstdint>

namespace opwright {

enum class Level : int32_t { kDefault = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };

// The level that this process runs: the widest that was compiled and that the processor has, or the
// one named by OPWRIGHT_CPU_CAPABILITY (default | avx2 | avx512 | neon) if that is not wider. Read
// once. Defined in src/isa.cpp. Throws std::invalid_argument when the variable names no level.
Level current_level();

// Returns the table of the current level. `Table` is a struct of function pointers. Expands in the
// binding file, which is compiled with OPWRIGHT_HAVE_* for the levels that the build made; see
// OPWRIGHT_DECLARE_TABLES.
#if defined(OPWRIGHT_HAVE_AVX2)
#define OPWRIGHT_DECLARE_AVX2(Table, name) \
  namespace isa_avx2 {                     \
  extern const Table name;                 \
  }
#define OPWRIGHT_CASE_AVX2(name) \
  case Level::kAvx2:             \
    return isa_avx2::name;
#else
#define OPWRIGHT_DECLARE_AVX2(Table, name)
#define OPWRIGHT_CASE_AVX2(name)
#endif
#if defined(OPWRIGHT_HAVE_AVX512)
#define OPWRIGHT_DECLARE_AVX512(Table, name) \
  namespace isa_avx512 {                     \
  extern const Table name;                   \
  }
#define OPWRIGHT_CASE_AVX512(name) \
  case Level::kAvx512:             \
    return isa_avx512::name;
#else
#define OPWRIGHT_DECLARE_AVX512(Table, name)
#define OPWRIGHT_CASE_AVX512(name)
#endif
#if defined(OPWRIGHT_HAVE_NEON)
#define OPWRIGHT_DECLARE_BASE(Table, name) \
  namespace isa_neon {                     \
  extern const Table name;                 \
  }
#define OPWRIGHT_BASE_TABLE(name) isa_neon::name
#else
#define OPWRIGHT_DECLARE_BASE(Table, name) \
  namespace isa_default {                  \
  extern const Table name;                 \
  }
#define OPWRIGHT_BASE_TABLE(name) isa_default::name
#endif

// Declares the tables that kernel files export under `name` and defines `const Table&
// name##_for_level()`.
#define OPWRIGHT_DECLARE_TABLES(Table, name)      \
  OPWRIGHT_DECLARE_BASE(Table, name)              \
  OPWRIGHT_DECLARE_AVX2(Table, name)              \
  OPWRIGHT_DECLARE_AVX512(Table, name)            \
  static inline const Table& name##_for_level() { \
    switch (current_level()) {                    \
      OPWRIGHT_CASE_AVX512(name)                  \
      OPWRIGHT_CASE_AVX2(name)                    \
      default:                                    \
        return OPWRIGHT_BASE_TABLE(name);         \
    }                                             \
  }

}  // namespace opwright
