// Functions of packs of float and double. Every function keeps NaN, takes infinities and signed
// zeros as its comment says, and is right for subnormal arguments and results. The error bounds,
// and how they are measured, are in docs/design/numerics.md.
//
// There are no scalar forms: the tail of a row goes through load_partial and the same function, so
// an element's result does not depend on where in the row it lies.
#pragma once

#include "opwright/simd.h"
#include "opwright/simd_math_erf.h"
#include "opwright/simd_math_exp.h"
#include "opwright/simd_math_log.h"
#include "opwright/simd_math_trig.h"
