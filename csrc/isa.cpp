#include "isa.h"

#include <cstdlib>
#include <stdexcept>

#if defined(SUBBYTE_ARM) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace subbyte {
namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  for (const std::string& each : names) {
    if (each == name) {
      return true;
    }
  }
  return false;
}

Names split(const std::string& text, char by) {
  Names parts = {""};
  for (const char letter : text) {
    if (letter == by) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

#ifdef SUBBYTE_X86
// Features that a family of kernels or a whole set needs, as the operating system names them.
Names cpu_features() {
  Names found;
  const auto add = [&found](const char* name, int has) {
    if (has != 0) {
      found.emplace_back(name);
    }
  };
  add("avx2", __builtin_cpu_supports("avx2"));
  add("bmi2", __builtin_cpu_supports("bmi2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512dq", __builtin_cpu_supports("avx512dq"));
  add("avx512_bf16", __builtin_cpu_supports("avx512bf16"));
  add("avx512_vbmi", __builtin_cpu_supports("avx512vbmi"));
  add("avx512_vnni", __builtin_cpu_supports("avx512vnni"));
  add("avx512_vpopcntdq", __builtin_cpu_supports("avx512vpopcntdq"));
  return found;
}
#else
Names cpu_features() {
  Names found = {"asimd"};  // every 64-bit ARM has it
#if defined(SUBBYTE_ARM) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) {
    found.emplace_back("asimddp");
  }
#endif
  return found;
}
#endif

// Builds one set from the next narrower: a family of kernels whose features are missing stays what it was there.
class SetOfKernels {
 public:
  SetOfKernels(std::string name, const std::string& needs, const Names& features, const Isa* narrower)
      : features_(features), isa_{std::move(name), needs, true, {}, ""} {
    for (const std::string& need : split(needs, ' ')) {
      isa_.available = isa_.available && contains(features, need);
    }
    isa_.available = isa_.available && (narrower == nullptr || narrower->available);
    isa_.kernels = narrower == nullptr ? Kernels{} : narrower->kernels;
    origins_ = narrower == nullptr ? Names{} : split(narrower->families, ' ');
  }

  template <typename Family>
  SetOfKernels& with(const char* family, const Family* Kernels::*place, const Family* kernels, const char* feature = "") {
    if (*feature != '\0' && !contains(features_, feature)) {
      return *this;
    }
    isa_.kernels.*place = kernels;
    const std::string start = std::string(family) + "=";
    for (std::string& origin : origins_) {
      if (origin.compare(0, start.size(), start) == 0) {
        origin = start + isa_.name;
        return *this;
      }
    }
    origins_.push_back(start + isa_.name);
    return *this;
  }

  Isa done() {
    for (const std::string& origin : origins_) {
      isa_.families += (isa_.families.empty() ? "" : " ") + origin;
    }
    return isa_;
  }

 private:
  const Names& features_;
  Isa isa_;
  Names origins_;
};

std::vector<Isa> list(const Names& features) {
  std::vector<Isa> found;
  found.push_back(SetOfKernels("scalar", "", {""}, nullptr)
                      .with("packing", &Kernels::packing, &reference_packing)
                      .with("quantize", &Kernels::quantize, &reference_quantize)
                      .with("rescale", &Kernels::rescale, &reference_rescale)
                      .with("linear", &Kernels::linear, &reference_linear)
                      .with("float_linear", &Kernels::float_linear, &reference_float_linear)
                      .with("depthwise", &Kernels::depthwise, &reference_depthwise)
                      .with("epilogue", &Kernels::epilogue, &reference_epilogue)
                      .with("binary", &Kernels::binary, &reference_binary)
                      .done());
#ifdef SUBBYTE_X86
  found.push_back(SetOfKernels("avx2", "avx2 bmi2 fma", features, &found.back())
                      .with("packing", &Kernels::packing, &avx2_packing)
                      .with("quantize", &Kernels::quantize, &avx2_quantize)
                      .with("rescale", &Kernels::rescale, &avx2_rescale)
                      .with("linear", &Kernels::linear, &avx2_linear)
                      .with("float_linear", &Kernels::float_linear, &avx2_float_linear)
                      .with("depthwise", &Kernels::depthwise, &avx2_depthwise)
                      .with("epilogue", &Kernels::epilogue, &avx2_epilogue)
                      .with("binary", &Kernels::binary, &avx2_binary)
                      .done());
  found.push_back(SetOfKernels("avx512", "avx512f avx512bw avx512vl avx512dq", features, &found.back())
                      .with("packing", &Kernels::packing, &avx512_packing, "avx512_vbmi")
                      .with("quantize", &Kernels::quantize, &avx512_quantize)
                      .with("rescale", &Kernels::rescale, &avx512_rescale)
                      .with("linear", &Kernels::linear, &avx512_linear, "avx512_vnni")
                      .with("float_linear", &Kernels::float_linear, &avx512_float_linear)
                      .with("bf16_linear", &Kernels::bf16_linear, &avx512_bf16_linear, "avx512_bf16")
                      .with("depthwise", &Kernels::depthwise, &avx512_depthwise)
                      .with("epilogue", &Kernels::epilogue, &avx512_epilogue)
                      .with("binary", &Kernels::binary, &avx512_binary, "avx512_vpopcntdq")
                      .done());
#endif
#ifdef SUBBYTE_ARM
  found.push_back(SetOfKernels("neon", "asimd", features, &found.back())
                      .with("packing", &Kernels::packing, &neon_packing)
                      .with("linear", &Kernels::linear, &neon_linear)
                      .with("linear", &Kernels::linear, &neon_dotprod_linear, "asimddp")
                      .done());
#endif
  return found;
}

// The sets that this CPU has, without some of its features.
const std::vector<Isa>& isas_without(const Names& removed) {
  static std::vector<std::pair<Names, std::vector<Isa>>*> known;  // kept: others hold references into them
  for (const auto* each : known) {
    if (each->first == removed) {
      return each->second;
    }
  }
  Names features;
  const Names all = cpu_features();
  for (const std::string& feature : removed) {
    if (!contains(all, feature)) {
      throw std::runtime_error("this CPU has no '" + feature + "' to go without");
    }
  }
  for (const std::string& feature : all) {
    if (!contains(removed, feature)) {
      features.push_back(feature);
    }
  }
  known.push_back(new std::pair<Names, std::vector<Isa>>(removed, list(features)));
  return known.back()->second;
}

struct Choice {
  const std::vector<Isa>* among;
  const Isa* isa;
};

Choice find(const std::string& asked) {
  Names removed = split(asked, '-');
  const std::string name = removed.front();
  removed.erase(removed.begin());
  Choice choice = {&isas_without(removed), nullptr};
  std::string known;
  for (const Isa& isa : *choice.among) {
    known += (known.empty() ? "" : ", ") + isa.name;
    if (name.empty() ? isa.available : isa.name == name) {
      choice.isa = &isa;
    }
  }
  if (choice.isa == nullptr) {
    throw std::runtime_error("there are no kernels for '" + name + "'; this build has " + known);
  }
  if (!choice.isa->available) {
    throw std::runtime_error("this CPU cannot run the kernels for " + name + "; they need " + choice.isa->needs);
  }
  return choice;
}

Choice& chosen() {
  static const char* asked = std::getenv("SUBBYTE_ISA");
  static Choice choice = find(asked == nullptr ? "" : asked);
  return choice;
}

}  // namespace

const std::vector<Isa>& isas() { return *chosen().among; }

const Isa& chosen_isa() { return *chosen().isa; }

void use_isa(const std::string& name) { chosen() = find(name); }

}  // namespace subbyte
