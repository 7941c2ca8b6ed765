// Which instruction set the kernels use: the best that this CPU has, or what SUBBYTE_ISA says.
#pragma once

#include <string>
#include <vector>

#include "kernels/table.h"

namespace subbyte {

struct Isa {
  std::string name;
  std::string needs;     // the CPU's features, as the operating system names them
  bool available;        // whether this CPU has them
  Kernels kernels;
  std::string families;  // for each family of kernels, whose they are: those of a narrower set where a feature is missing
};

// From the narrowest to the widest; `scalar` is always there.
const std::vector<Isa>& isas();

// The one in use: the widest available, unless SUBBYTE_ISA names another. `avx512-avx512_vnni` is AVX-512 without the
// features after each dash. Throws std::runtime_error where that is
// unknown or this CPU has not got it.
const Isa& chosen_isa();

// Use this one from now on; an empty name means the widest available. Throws as above. Not while kernels run.
void use_isa(const std::string& name);

}  // namespace subbyte
