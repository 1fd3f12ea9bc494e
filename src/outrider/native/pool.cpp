#include "pool.h"

#include <chrono>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outrider {

namespace {

constexpr int kSpins = 64;                                        // between two looks at the clock
constexpr auto kYieldAfter = std::chrono::microseconds(30);       // at a barrier
constexpr auto kSleepAfter = std::chrono::microseconds(300);      // without a job

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` or for `limit`; whether it is done.
template <typename F>
bool spin(F&& done, std::chrono::microseconds limit) {
  std::chrono::steady_clock::time_point start;
  for (int round = 0;; round++) {
    for (int i = 0; i < kSpins; i++) {
      if (done()) return true;
      pause();
    }
    const auto now = std::chrono::steady_clock::now();
    if (round == 0) start = now;
    else if (now - start > limit) return false;
  }
}

Pool* current = nullptr;  // never destroyed: its threads end with the process

}  // namespace

Pool& Pool::get() {
  static std::once_flag once;
  std::call_once(once, [] {
    current = new Pool;
#if !defined(_WIN32)
    pthread_atfork(nullptr, nullptr, [] { current = new Pool; });  // a child process has none of the threads
#endif
  });
  return *current;
}

void Pool::run(int threads, Job job, void* data) {
  Pool& pool = get();
  std::unique_lock<std::mutex> lock(pool.busy_, std::try_to_lock);
  if (threads <= 1 || threads > 0xffff || !lock.owns_lock()) {
    job(Worker{0, 1, nullptr}, data);
    return;
  }
  pool.start(threads, job, data);
}

void Pool::start(int threads, Job job, void* data) {
  grow(threads);
  job_ = job;
  data_ = data;
  count_ = threads;
  {
    std::lock_guard<std::mutex> lock(sleep_);
    call_.store(((call_.load() >> 16) + 1) << 16 | static_cast<uint64_t>(threads), std::memory_order_release);
  }
  if (sleeping_.load() > 0) wake_.notify_all();
  job(Worker{0, threads, this}, data);
  barrier();
}

void Pool::grow(int threads) {
  for (; num_workers_ < threads - 1; num_workers_++) {
    const int index = num_workers_ + 1;
    std::thread([this, index, seen = call_.load()] { serve(index, seen); }).detach();
  }
}

void Pool::serve(int index, uint64_t seen) {
  for (;;) {
    seen = next_after(seen);
    const int count = static_cast<int>(seen & 0xffff);
    if (index >= count) continue;  // and nothing of the job may be read: it can be over by now
    job_(Worker{index, count, this}, data_);
    barrier();
  }
}

uint64_t Pool::next_after(uint64_t seen) {
  const auto called = [&] { return call_.load(std::memory_order_acquire) != seen; };
  if (!spin(called, kSleepAfter)) {
    std::unique_lock<std::mutex> lock(sleep_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, called);
    sleeping_.fetch_sub(1);
  }
  return call_.load(std::memory_order_acquire);
}

void Pool::barrier() {
  const int phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  const auto passed = [&] { return phase_.load(std::memory_order_acquire) != phase; };
  while (!spin(passed, kYieldAfter)) std::this_thread::yield();
}

}  // namespace outrider
