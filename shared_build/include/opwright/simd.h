// Vectors for kernels: arithmetic, conversions to and from the storage types, loads and stores.
// The functions of mathematics are in simd_math.h. See docs/design/numerics.md for what holds.
#pragma once

#include "opwright/simd_convert.h"
#include "opwright/simd_core.h"
#include "opwright/simd_memory.h"
#include "opwright/simd_reduce.h"
