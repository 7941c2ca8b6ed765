// What this processor can do at most: how fast it reads memory and how fast it multiplies, on one thread and on two.
//
// Prints JSON. Each function that needs an extension is compiled for it alone and run where the CPU has it; inline
// assembly keeps an accumulator in its register, whatever the compiler thinks of the loop.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#define WITH(features) __attribute__((target(features), noinline))
#else
#define WITH(features) __attribute__((noinline))
#endif

namespace {

using Seconds = std::chrono::duration<double>;
using Work = std::function<void(int thread)>;

constexpr int kRounds = 12;

struct Rate {
  double best;
  double median;
};

// Units of work a second, all threads together, over rounds that begin at the same moment in every thread. The calling
// thread is one of them: one that waited beside them would take the place of a worker.
Rate measure(int threads, double work_of_thread, const Work& work) {
  std::vector<double> rates;
  for (int round = -1; round < kRounds; ++round) {
    std::atomic<int> waiting{threads};
    const auto take_part = [&](int thread) {
      --waiting;
      while (waiting != 0) {
      }
      work(thread);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) {
      others.emplace_back(take_part, thread);
    }
    while (waiting != 1) {
    }
    const auto start = std::chrono::steady_clock::now();
    take_part(0);
    for (std::thread& other : others) {
      other.join();
    }
    const double seconds = Seconds(std::chrono::steady_clock::now() - start).count();
    if (round >= 0) {  // the first one warms up
      rates.push_back(work_of_thread * threads / seconds);
    }
  }
  std::sort(rates.begin(), rates.end());
  return {rates.back(), rates[rates.size() / 2]};
}

class Table {
 public:
  void add(const char* name, const char* unit, double work_of_thread, const Work& work) {
    for (const int threads : {1, 2}) {
      const Rate rate = measure(threads, work_of_thread, work);
      char row[256];
      std::snprintf(row, sizeof row,
                    "{\"name\": \"%s\", \"unit\": \"%s\", \"threads\": %d, \"best\": %.2f, \"median\": %.2f}", name, unit,
                    threads, rate.best / 1e9, rate.median / 1e9);
      rows_ += (rows_.empty() ? "" : ", ") + std::string(row);
    }
  }

  void lacks(const char* name, const char* feature) {
    lacking_ += (lacking_.empty() ? "" : ", ") + ("\"" + std::string(name)) + " (" + feature + ")\"";
  }

  void print() const { std::printf("{\"rows\": [%s], \"lacks\": [%s]}\n", rows_.c_str(), lacking_.c_str()); }

 private:
  std::string rows_;
  std::string lacking_;
};

// Memory ------------------------------------------------------------------------------------------------------------

std::atomic<int64_t> sink{0};

typedef int64_t Vector __attribute__((vector_size(32), may_alias));

WITH("avx2") void read(const char* bytes, size_t size) {
  Vector a = {}, b = {}, c = {}, d = {};
  for (size_t i = 0; i < size; i += 4 * sizeof(Vector)) {
    const Vector* const at = reinterpret_cast<const Vector*>(bytes + i);
    a ^= at[0];
    b ^= at[1];
    c ^= at[2];
    d ^= at[3];
  }
  const Vector all = a ^ b ^ c ^ d;
  sink += all[0] ^ all[1] ^ all[2] ^ all[3];
}

class Memory {
 public:
  Memory(size_t size, int advice) : size_(size + kHugePage) {
    mapped_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    madvise(mapped_, size_, advice);  // a wish: a kernel without huge pages reads on small ones
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapped_);
    bytes_ = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
    std::fill(bytes_, bytes_ + size, 1);
  }
  ~Memory() { munmap(mapped_, size_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const char* bytes() const { return bytes_; }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  size_t size_;
  void* mapped_;
  char* bytes_;
};

void memory(Table& table) {
  constexpr size_t share = size_t{192} << 20;  // of a thread; several times any L3
  constexpr size_t cached = size_t{5} << 20;   // of a thread; more than its L2, and two of them less than L3
  constexpr int times = 80;
  {
    const Memory small(2 * share, MADV_NOHUGEPAGE);
    table.add("DRAM read, 4 KiB pages", "GB/s", share, [&](int thread) { read(small.bytes() + thread * share, share); });
  }
  const Memory huge(2 * share, MADV_HUGEPAGE);
  table.add("DRAM read, huge pages", "GB/s", share, [&](int thread) { read(huge.bytes() + thread * share, share); });
  table.add("L3 read", "GB/s", static_cast<double>(cached) * times, [&](int thread) {
    for (int i = 0; i < times; ++i) {
      read(huge.bytes() + thread * cached, cached);
    }
  });
}

// Arithmetic --------------------------------------------------------------------------------------------------------

#ifdef __x86_64__

constexpr int64_t kSteps = 1 << 22;
constexpr int kAccumulators = 16;

WITH("avx512f") void fp32_zmm() {
  __m512 sums[kAccumulators] = {};
  const __m512 a = _mm512_set1_ps(1e-3f), b = a;
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      asm volatile("vfmadd231ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
  }
}

WITH("avx2,fma") void fp32_ymm() {
  __m256 sums[12] = {};
  const __m256 a = _mm256_set1_ps(1e-3f), b = a;
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(b));
    }
  }
}

WITH("avx512f,avx512bf16") void bf16_zmm() {
  __m512 sums[kAccumulators] = {};
  const __m512i a = _mm512_set1_epi16(0x3a80), b = a;
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      asm volatile("vdpbf16ps %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
  }
}

WITH("avx512f,avx512vnni") void vnni_zmm() {
  __m512i sums[kAccumulators] = {};
  const __m512i a = _mm512_set1_epi8(3), b = a;
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m512i& sum : sums) {
      asm volatile("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
  }
}

constexpr int kChains = 4;
constexpr int kInt16Sums = 8;  // as many products of 4 by 8 bits fit an int16 sum

WITH("avx2") void maddubs_ymm() {
  __m256i sums[kChains] = {};
  const __m256i a = _mm256_set1_epi8(3), b = a, ones = _mm256_set1_epi16(1);
  for (int64_t step = 0; step < kSteps / kInt16Sums; ++step) {
    __m256i narrow[kChains] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kInt16Sums; ++i) {
#pragma GCC unroll 4
      for (__m256i& sum : narrow) {
        __m256i product;
        asm volatile("vpmaddubsw %1, %2, %0" : "=x"(product) : "x"(a), "x"(b));
        asm volatile("vpaddw %1, %0, %0" : "+x"(sum) : "x"(product));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) {
      asm volatile("vpmaddwd %1, %0, %0" : "+x"(narrow[i]) : "x"(ones));
      asm volatile("vpaddd %1, %0, %0" : "+x"(sums[i]) : "x"(narrow[i]));
    }
  }
}

WITH("avx512f,avx512vpopcntdq") void popcount_zmm() {
  __m512i sums[8] = {};
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 8
    for (__m512i& sum : sums) {
      __m512i bits;
      asm volatile("vpxorq %1, %2, %0" : "=v"(bits) : "v"(a), "v"(b));
      asm volatile("vpopcntq %0, %0" : "+v"(bits));
      asm volatile("vpaddq %1, %0, %0" : "+v"(sum) : "v"(bits));
    }
  }
}

// Harley and Seal's carry-save adder tree (Mula, Kurz and Lemire 2018): one popcount for sixteen vectors.
__attribute__((target("avx2"), always_inline)) inline __m256i carry_save(__m256i& low, __m256i a, __m256i b) {
  const __m256i either = _mm256_xor_si256(a, b);
  const __m256i high = _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(either, low));
  low = _mm256_xor_si256(either, low);
  return high;
}

__attribute__((target("avx2"), always_inline)) inline __m256i popcount_bytes(__m256i bits) {
  const __m256i table = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2,
                                         3, 2, 3, 3, 4);
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(bits, nibble));
  const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bits, 4), nibble));
  return _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256());
}

constexpr int kTree = 16;    // vectors of one carry-save tree
constexpr int kStream = 256;  // vectors of an operand: 8 KiB, two of them in L1

WITH("avx2") void harley_seal_ymm(const __m256i* a, const __m256i* b) {
  __m256i ones = {}, twos = {}, fours = {}, eights = {}, sum = {};
  const auto pair = [&](const __m256i* x, const __m256i* y) __attribute__((target("avx2"), always_inline)) {
    return carry_save(ones, _mm256_xor_si256(x[0], y[0]), _mm256_xor_si256(x[1], y[1]));
  };
  for (int64_t step = 0; step < kSteps / kStream; ++step) {
    for (int i = 0; i < kStream; i += kTree) {
      __m256i of_fours[2], of_eights[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
        for (int quarter = 0; quarter < 2; ++quarter) {
          const int at = i + 8 * half + 4 * quarter;
          const __m256i first = pair(a + at, b + at);
          const __m256i second = pair(a + at + 2, b + at + 2);
          of_fours[quarter] = carry_save(twos, first, second);
        }
        of_eights[half] = carry_save(fours, of_fours[0], of_fours[1]);
      }
      const __m256i sixteens = carry_save(eights, of_eights[0], of_eights[1]);
      sum = _mm256_add_epi64(sum, popcount_bytes(sixteens));
    }
    asm volatile("" : "+x"(sum), "+x"(ones) : : "memory");
  }
  sink += _mm256_extract_epi64(sum, 0);
}

void arithmetic(Table& table) {
  const auto add = [&table](const char* name, const char* unit, double operations, bool has, const char* feature,
                            void (*work)()) {
    if (has) {
      table.add(name, unit, operations * kSteps, [work](int) { work(); });
    } else {
      table.lacks(name, feature);
    }
  };
  const auto has = [](int supported) { return supported != 0; };
  const bool wide = has(__builtin_cpu_supports("avx512f"));
  const bool avx2 = has(__builtin_cpu_supports("avx2"));
  if (wide) {
    add("fp32 FMA", "GFLOP/s", 2.0 * 16 * kAccumulators, wide, "avx512f", fp32_zmm);
  } else {
    add("fp32 FMA", "GFLOP/s", 2.0 * 8 * 12, avx2 && has(__builtin_cpu_supports("fma")), "fma", fp32_ymm);
  }
  add("bf16 vdpbf16ps", "GFLOP/s", 2.0 * 32 * kAccumulators, wide && has(__builtin_cpu_supports("avx512bf16")),
      "avx512_bf16", bf16_zmm);
  add("vpdpbusd zmm", "GOP/s", 2.0 * 64 * kAccumulators, wide && has(__builtin_cpu_supports("avx512vnni")),
      "avx512_vnni", vnni_zmm);
  add("AVX2 maddubs", "GOP/s", 2.0 * 32 * kChains, avx2, "avx2", maddubs_ymm);
  add("xor + vpopcntq + add", "GOP/s", 2.0 * 512 * 8, wide && has(__builtin_cpu_supports("avx512vpopcntdq")),
      "avx512_vpopcntdq", popcount_zmm);
  add("AVX2 Harley-Seal popcount", "GOP/s", 2.0 * 256, avx2, "avx2", [] {
    alignas(32) static const __m256i a[kStream] = {}, b[kStream] = {};
    harley_seal_ymm(a, b);
  });
}

#else

void arithmetic(Table& table) { table.lacks("arithmetic", "written for x86 only"); }

#endif

}  // namespace

int main() {
  Table table;
  memory(table);
  arithmetic(table);
  table.print();
  return 0;
}
