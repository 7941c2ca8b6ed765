// Linear layers on floats by AVX-512 in fp32.
#include <immintrin.h>

#include "../kernels/float_linear.h"
#include "float_tiles.h"
#include "float_values.h"

namespace subbyte {
namespace {

struct Fp32 {
  using Number = float;
  using Table = __m512;
  static constexpr int kWords = kStep;

  static inline Table table_of(const float* values) { return floats_of_table(values); }

  template <int Bits, bool Zeros, int Word>
  static inline __m512 word_of(__m512i codes, const Table& values, __m512 zero) {
    return float_of<Bits, Zeros, Word>(codes, values, zero);
  }

  static inline void add(__m512& total, __m512 w, __m512 x) { total = _mm512_fmadd_ps(x, w, total); }

  static inline void store(float* to, __mmask16 real, __m512 y) { _mm512_mask_storeu_ps(to, real, y); }
};

}  // namespace

const FloatLinearKernels avx512_float_linear = {linear<Fp32>};

}  // namespace subbyte
