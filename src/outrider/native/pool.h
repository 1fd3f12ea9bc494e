// Threads that wait for few-row forwards: a job is a function that all of them run, with barriers between its phases.
// A waiting thread spins for a bounded time and then gives its core away. When the caller keeps waiting for threads that
// have lost their cores to another process, it works alone for a while: a forward has hundreds of barriers, and each of them
// would wait for a time slice. Results never depend on the number of threads: no sum is split between two of them.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

class Pool;

// One thread's view of a job: which of how many it is, and the barrier that they share.
struct Worker {
  int index, count;
  Pool* pool;
  void barrier() const;

  // The share of `units` that falls to this thread: from first to last (not included), contiguous.
  int64_t first(int64_t units) const { return units * index / count; }
  int64_t last(int64_t units) const { return units * (index + 1) / count; }
};

class Pool {
 public:
  typedef void (*Job)(const Worker&, void*);

  // Run `job` on `threads` threads, the caller among them. A pool that is busy runs it on the caller alone.
  static void run(int threads, Job job, void* data);

  template <typename F>
  static void run(int threads, F&& body) {
    run(threads, [](const Worker& worker, void* data) { (*static_cast<F*>(data))(worker); }, &body);
  }

 private:
  friend struct Worker;
  static Pool& get();
  void grow(int threads);
  void serve(int index, uint64_t seen);
  void start(int threads, Job job, void* data);
  uint64_t next_after(uint64_t seen);
  void barrier(int index);
  void spread();
  void judge(std::chrono::steady_clock::time_point arrived);

  typedef std::chrono::steady_clock Clock;
  std::mutex busy_, sleep_;
  std::condition_variable wake_;
  std::vector<std::thread::native_handle_type> workers_;
  std::atomic<uint64_t> call_{0};  // number of the latest job * 65536 + its threads
  std::atomic<int> sleeping_{0}, arrived_{0}, phase_{0};
  int count_ = 1;
  Clock::time_point passed_, alone_until_;  // the caller's latest barrier; until when it works alone
  Clock::duration stalled_{};               // waits for lost threads that are not forgotten yet
  Clock::duration pause_ = std::chrono::milliseconds(25);  // how long it will work alone when that is too much
  bool lost_ = false;                       // a thread was lost in this job
  bool waking_ = false;                     // threads slept before this job, and its first barrier waits for them
  Job job_ = nullptr;
  void* data_ = nullptr;
};

inline void Worker::barrier() const {
  if (count > 1) pool->barrier(index);
}

}  // namespace outrider
