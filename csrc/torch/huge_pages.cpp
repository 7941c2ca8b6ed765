#include "huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace subbyte {

void advise_huge_pages(void* memory, std::size_t size) {
#ifdef MADV_HUGEPAGE
  const std::uintptr_t page = 4096, begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + page - 1) / page * page, end = (begin + size) / page * page;
  if (first < end) {
    madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  }
#else
  static_cast<void>(memory), static_cast<void>(size);
#endif
}

}  // namespace subbyte
