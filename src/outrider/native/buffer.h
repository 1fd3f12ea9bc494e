// Memory that grows, is never shrunk and starts at a cache line: a vector register that straddles two is read twice.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace outrider {

template <typename T>
class Buffer {
 public:
  void fit(int64_t count) {
    if (count <= size_) return;
    room_.reset(static_cast<char*>(std::malloc(count * sizeof(T) + kLine)));
    if (!room_) throw std::bad_alloc();
    const uintptr_t start = reinterpret_cast<uintptr_t>(room_.get());
    data_ = reinterpret_cast<T*>((start + kLine - 1) / kLine * kLine);
    size_ = count;
  }
  T* data() const { return data_; }

 private:
  struct Free {
    void operator()(char* room) const { std::free(room); }
  };
  static constexpr uintptr_t kLine = 64;
  std::unique_ptr<char, Free> room_;
  T* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace outrider
