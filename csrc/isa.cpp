#include "isa.h"

#include <cstdlib>
#include <stdexcept>

namespace subbyte {
namespace {

std::vector<Isa> list() {
  std::vector<Isa> found = {{"scalar", "nothing", true, &reference_kernels}};
#ifdef SUBBYTE_X86
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
  found.push_back({"avx2", "avx2 bmi2 fma", avx2, &avx2_kernels});
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  found.push_back({"avx512", "avx512f avx512bw avx512vl avx512dq avx512_vbmi avx512_vnni", avx512, &avx512_kernels});
#endif
#ifdef SUBBYTE_ARM
  found.push_back({"neon", "asimd", true, &neon_kernels});  // every 64-bit ARM has it
#endif
  return found;
}

const Isa& find(const std::string& name) {
  const Isa* found = nullptr;
  std::string known;
  for (const Isa& isa : isas()) {
    known += (known.empty() ? "" : ", ") + isa.name;
    if (name.empty() ? isa.available : isa.name == name) {
      found = &isa;
    }
  }
  if (found == nullptr) {
    throw std::runtime_error("there are no kernels for '" + name + "'; this build has " + known);
  }
  if (!found->available) {
    throw std::runtime_error("this CPU cannot run the kernels for " + name + "; they need " + found->needs);
  }
  return *found;
}

const Isa*& chosen() {
  static const char* asked = std::getenv("SUBBYTE_ISA");
  static const Isa* isa = &find(asked == nullptr ? "" : asked);
  return isa;
}

}  // namespace

const std::vector<Isa>& isas() {
  static const std::vector<Isa> all = list();
  return all;
}

const Isa& chosen_isa() { return *chosen(); }

void use_isa(const std::string& name) { chosen() = &find(name); }

}  // namespace subbyte
