#include "pool.h"

#include <algorithm>

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace outrider {

namespace {

constexpr int kSpins = 64;                                        // between two looks at the clock
constexpr auto kYieldAfter = std::chrono::microseconds(30);       // at a barrier
constexpr auto kSleepAfter = std::chrono::microseconds(1000);     // without a job
constexpr auto kStall = std::chrono::microseconds(500);           // a wait at a barrier that work does not explain
constexpr auto kPatience = std::chrono::milliseconds(30);
constexpr auto kShortPause = std::chrono::milliseconds(25), kLongPause = std::chrono::milliseconds(1600);

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
  if (threads <= 1 || threads > 0xffff || !lock.owns_lock() || Clock::now() < pool.alone_until_) {
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
  waking_ = sleeping_.load() > 0;
  if (waking_) {
    spread();
    wake_.notify_all();
  }
  lost_ = false;
  passed_ = Clock::now();
  job(Worker{0, threads, this}, data);
  barrier(0);
  if (!lost_) pause_ = std::max<Clock::duration>(kShortPause, pause_ * 9 / 10);
}

void Pool::grow(int threads) {
  while (static_cast<int>(workers_.size()) < threads - 1) {
    const int index = static_cast<int>(workers_.size()) + 1;
    std::thread thread([this, index, seen = call_.load()] { serve(index, seen); });
    workers_.push_back(thread.native_handle());
    thread.detach();
    spread();
  }
}

// Keep the others off the caller's core: a system that packs waking threads together would make them take turns.
void Pool::spread() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2) return;
  CPU_CLR(sched_getcpu(), &cores);
  for (std::thread::native_handle_type worker : workers_) pthread_setaffinity_np(worker, sizeof cores, &cores);
#endif
}

void Pool::serve(int index, uint64_t seen) {
  for (;;) {
    seen = next_after(seen);
    const int count = static_cast<int>(seen & 0xffff);
    if (index >= count) continue;  // and nothing of the job may be read: it can be over by now
    job_(Worker{index, count, this}, data_);
    barrier(index);
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

void Pool::barrier(int index) {
  const Clock::time_point arrived = index == 0 ? Clock::now() : Clock::time_point();
  const int phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
  } else {
    const auto passed = [&] { return phase_.load(std::memory_order_acquire) != phase; };
    while (!spin(passed, kYieldAfter)) std::this_thread::yield();
  }
  if (index == 0) judge(arrived);
}

// Adds up waits far longer than the caller's own part of a phase: the others had not got their cores. A stall now and
// then is forgotten; when stalls take more than a fifth of the time, the caller goes on alone for a while.
void Pool::judge(Clock::time_point arrived) {
  const Clock::time_point now = Clock::now();
  const Clock::duration waited = now - arrived;
  stalled_ = std::max(Clock::duration::zero(), stalled_ - (now - passed_) / 5);
  if (!waking_ && waited > kStall && waited > (arrived - passed_) / 2) {
    if (!lost_) spread();
    lost_ = true;
    stalled_ += waited;
    if (stalled_ > kPatience) {
      stalled_ = Clock::duration::zero();
      alone_until_ = now + pause_;
      pause_ = std::min<Clock::duration>(kLongPause, 2 * pause_);
    }
  }
  waking_ = false;
  passed_ = now;
}

}  // namespace outrider
