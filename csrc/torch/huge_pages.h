// Memory that streams faster: reading a weight that fits in no cache takes 1.6 times as long from pages of 4 KiB.
#pragma once

#include <cstddef>

namespace subbyte {

// Asks for huge pages under these bytes, before they are first written. A wish: what cannot be granted changes nothing.
void advise_huge_pages(void* memory, std::size_t size);

}  // namespace subbyte
