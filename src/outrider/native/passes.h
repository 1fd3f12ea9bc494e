// Rows in passes of as many as registers hold, as equal as can be, their number known to the compiler.
#pragma once
#include <cstdint>
#include <type_traits>

namespace outrider {

// body(std::integral_constant<int, count>) for 1 <= count <= R.
template <int R, typename F>
inline void with_rows(int64_t count, F&& body) {
  if (count == R) body(std::integral_constant<int, R>());
  else if constexpr (R > 1) with_rows<R - 1>(count, body);
}

// body(std::integral_constant<int, count>, first row) for every pass of at most `Most` rows.
template <int Most, typename F>
inline void in_passes(int64_t rows, F&& body) {
  const int64_t passes = (rows + Most - 1) / Most;
  for (int64_t pass = 0, first = 0; pass < passes; pass++) {
    const int64_t count = (rows - first + passes - pass - 1) / (passes - pass);
    with_rows<Most>(count, [&](auto number) { body(number, first); });
    first += count;
  }
}

}  // namespace outrider
