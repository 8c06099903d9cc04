// Polynomials and constants of the functions in simd_math.h, for float and double.
//
// Each polynomial has the least greatest error, relative to the function, on its interval;
// tests/simd/minimax.py derives them and a test compares. Constant term first.
#pragma once

#include "opwright/simd_core.h"

namespace opwright {
inline namespace OPWRIGHT_ISA {
namespace {

template <class A>
struct Table;

template <>
struct Table<float> {
  using Bits = std::uint32_t;
  static constexpr int kMantissaBits = 23;
  static constexpr Bits kExponentBias = 127;
  static constexpr float kInfinity = __builtin_inff();
  static constexpr float kNaN = __builtin_nanf("");
  static constexpr float kLeastNormal = 0x1p-126f;
  static constexpr Bits kRootHalfBits = 0x3f3504f3;  // of sqrt(1/2)
  static constexpr float kRound = 0x1.8p23f;  // x + kRound - kRound is x to the nearest integer
  static constexpr float kTiny = 0x1p-26f;    // below it, f(x) = x to half an ulp for odd f

  static constexpr float kLog2E = 0x1.715476p+0f;
  // ln 2 in two parts; a product of the first with an exponent is exact.
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  // Beyond, exp overflows, and exp and x * exp(x) are below half of the least subnormal.
  static constexpr float kExpEnd = 89.0f;
  static constexpr float kExpBegin = -120.0f;
  static constexpr float kExpm1Begin = -18.0f;  // before, expm1 is -1
  static constexpr float kLogisticEnd = 80.0f;  // exp(-x) is normal, and in 1 + exp(-x) nothing

  // (exp(r) - 1 - r) / r^2, |r| <= 0.3475; error 2^-27.9
  static constexpr float exp[] = {0x1.fffffcp-2f, 0x1.55549p-3f, 0x1.5558fcp-5f, 0x1.123b6cp-7f,
                                  0x1.6a20d4p-10f};
  // (atanh(s) / s - 1) * 2 / s^2 in s^2, |s| <= 0.1726; error 2^-29.9
  static constexpr float log[] = {0x1.55557cp-1f, 0x1.995d38p-2f, 0x1.320edp-2f};
  // (tanh(x) / x - 1) / x^2 in x^2, |x| <= 0.625; error 2^-26.8
  static constexpr float tanh[] = {-0x1.555532p-2f, 0x1.110726p-3f, -0x1.b83c58p-5f, 0x1.522688p-6f,
                                   -0x1.75e16ep-8f};
  // (sin(x) / x - 1) / x^2 in x^2, |x| <= 0.82; error 2^-27.1
  static constexpr float sin[] = {-0x1.55554p-3f, 0x1.11056p-7f, -0x1.98a684p-13f};
  // (cos(x) - 1 + x^2 / 2) / x^4 in x^2, |x| <= 0.82; error 2^-30.1
  static constexpr float cos[] = {0x1.555546p-5f, -0x1.6c0a3p-10f, 0x1.995bc6p-16f};
  // erf(x) / x - 1 in x^2, |x| <= 1; error 2^-28.3
  static constexpr float erf[] = {0x1.06eba8p-3f, -0x1.81273ep-2f,  0x1.ce2cf8p-4f, -0x1.b7f90ep-6f,
                                  0x1.5405b6p-8f, -0x1.a3f716p-11f, 0x1.496a68p-14f};
  // log(erfc(x)), 1 <= x <= 4; error 2^-26.8 of erf
  static constexpr float kErfEnd = 4.0f;  // from here erf is 1
  static constexpr float log_erfc[] = {-0x1.6628a8p-12f, -0x1.2088e8p+0f, -0x1.46baf8p-1f,
                                       -0x1.a652e6p-4f,  0x1.65cab2p-6f,  -0x1.825948p-9f,
                                       0x1.86da86p-13f};

  static constexpr float kTwoOverPi = 0x1.45f306p-1f;
  static constexpr float kTrigonometricEnd = 0x1p18f;  // from here the exact reduction
  // pi / 2 in three parts, for levels with a fused multiply-add
  static constexpr float kHalfPi[] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};
};

template <>
struct Table<double> {
  using Bits = std::uint64_t;
  static constexpr int kMantissaBits = 52;
  static constexpr Bits kExponentBias = 1023;
  static constexpr double kInfinity = __builtin_inf();
  static constexpr double kNaN = __builtin_nan("");
  static constexpr double kLeastNormal = 0x1p-1022;
  static constexpr Bits kRootHalfBits = 0x3fe6a09e667f3bcd;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kTiny = 0x1p-55;

  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1;
  static constexpr double kLn2Low = 0x1.ef35793c7673p-45;
  static constexpr double kExpEnd = 710.0;
  static constexpr double kExpBegin = -760.0;
  static constexpr double kExpm1Begin = -38.0;
  static constexpr double kLogisticEnd = 700.0;

  // (exp(r) - 1 - r) / r^2, |r| <= 0.3475; error 2^-56.9
  static constexpr double exp[] = {
      0x1.000000000000ap-1,  0x1.55555555554f7p-3,  0x1.55555555506f1p-5,  0x1.1111111128440p-7,
      0x1.6c16c18487898p-10, 0x1.a01a0128364e2p-13, 0x1.a01998ffad78dp-16, 0x1.71df28721cff2p-19,
      0x1.28ae7726202c3p-22, 0x1.ad7d23401395ep-26};
  // (atanh(s) / s - 1) * 2 / s^2 in s^2, |s| <= 0.1726; error 2^-59.2
  static constexpr double log[] = {0x1.5555555555598p-1, 0x1.999999997ddb1p-2, 0x1.24924943d68a5p-2,
                                   0x1.c71c5066aa029p-3, 0x1.746699787bfbfp-3, 0x1.399828b890869p-3,
                                   0x1.2f6a08b7a44d9p-3};
  // (tanh(x) / x - 1) / x^2 in x^2, |x| <= 0.625; error 2^-56.9
  static constexpr double tanh[] = {
      -0x1.5555555555552p-2,  0x1.1111111110c04p-3,  -0x1.ba1ba1b9ce674p-5,  0x1.664f487037851p-6,
      -0x1.226e32c133c2dp-7,  0x1.d6d3584ebae53p-9,  -0x1.7d9c1d6114734p-10, 0x1.350ae1d595cf3p-11,
      -0x1.f10cb75ca0954p-13, 0x1.800625afc18e1p-14, -0x1.fa755b9fdda37p-16, 0x1.958144db1104cp-18};
  // (sin(x) / x - 1) / x^2 in x^2, |x| <= 0.82; error 2^-57.0
  static constexpr double sin[] = {
      -0x1.5555555555555p-3,  0x1.1111111111107p-7,  -0x1.a01a01a017eb2p-13, 0x1.71de3a524456dp-19,
      -0x1.ae645162d838bp-26, 0x1.611fd38c73ea5p-33, -0x1.aa4955531ac90p-41};
  // (cos(x) - 1 + x^2 / 2) / x^4 in x^2, |x| <= 0.82; error 2^-59.0
  static constexpr double cos[] = {0x1.5555555555543p-5,  -0x1.6c16c16c13feap-10,
                                   0x1.a01a019b0488fp-16, -0x1.27e4f6db093ddp-22,
                                   0x1.1ee922cf4c037p-29, -0x1.8f48ec5784342p-37};
  // erf(x) / x - 1 in x^2, |x| <= 1; error 2^-56.3
  static constexpr double erf[] = {
      0x1.06eba8214db69p-3,  -0x1.812746b0379e6p-2,  0x1.ce2f21a042b20p-4,  -0x1.b82ce3128499cp-6,
      0x1.565bcd0db02bap-8,  -0x1.c02db3d8ec971p-11, 0x1.f9a321a10bcdbp-14, -0x1.f4d1df37d1730p-17,
      0x1.b9def189ad8e7p-20, -0x1.5f1d360d13c18p-23, 0x1.f7a40a3fa9a4cp-27, -0x1.386aa77622615p-30,
      0x1.0579648ab2641p-34};
  // log(erfc(x)), 1 <= x <= 6; error 2^-54.9 of erf
  static constexpr double kErfEnd = 6.0;
  static constexpr double log_erfc[] = {
      -0x1.0dfacc3e1a1fbp-21, -0x1.20dd1fd2dc75dp+0,  -0x1.45f6275d6902dp-1,
      -0x1.a4ac5bc92c523p-4,  0x1.37228ef03372ap-6,   0x1.ae954fb94bea1p-12,
      -0x1.f64160cb65564p-10, 0x1.940afc6299fbcp-11,  -0x1.1b3b4a5c68d7bp-13,
      -0x1.53f9609c27932p-16, 0x1.7ee13b3b34f51p-16,  -0x1.22cf57e3089cdp-17,
      0x1.1ea2460dd39f1p-19,  -0x1.90d010039fbf7p-22, 0x1.8ebfcb38a1f36p-25,
      -0x1.0e58357a4678bp-28, 0x1.c1a993920b746p-33,  -0x1.5acb90ac587a6p-38};

  static constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  static constexpr double kTrigonometricEnd = 0x1p20;
  static constexpr double kHalfPi[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54,
                                       -0x1.f1976b7ed8fbcp-110};
  // pi / 2 in two parts, for arguments of float: the product of the first with n < 2^20 is exact
  static constexpr double kHalfPiLong[] = {0x1.921fb544p+0, 0x1.0b4611a626331p-34};
  // pi / 2 in parts of 33 bits, whose products with an integer below 2^20 are exact
  static constexpr double kHalfPiShort[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2ep-69,
                                            0x1.b839a252049c1p-104};
};

}  // namespace
}  // namespace OPWRIGHT_ISA
}  // namespace opwright
