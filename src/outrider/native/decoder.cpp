#include "decoder.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace outrider {

namespace {

// What a forward computes in; grows and is kept by the calling thread.
struct Buffers {
  Buffer<float> normed, qkv, heads, delta, gate_up, gated;
  Buffer<char> quantised;

  void fit(const OutriderDecoder& d, const OutriderAttend& a) {
    int64_t bytes = quantised_bytes(a.rows, d.head.inputs), wide = d.hidden, gate_up_n = 0, qkv_n = 0;
    for (int64_t i = 0; i < d.num_layers; i++) {
      const OutriderLayer& layer = d.layers[i];
      for (const OutriderLinear* linear : {&layer.qkv, &layer.out, &layer.gate_up, &layer.down})
        bytes = std::max(bytes, quantised_bytes(a.rows, linear->inputs));
      gate_up_n = std::max(gate_up_n, layer.gate_up.n);
      qkv_n = std::max(qkv_n, layer.qkv.n);
    }
    normed.fit(a.rows * wide);
    delta.fit(a.rows * wide);
    qkv.fit(a.rows * qkv_n);
    heads.fit(a.rows * a.q_heads * a.dim);
    gate_up.fit(a.rows * gate_up_n);
    gated.fit(a.rows * gate_up_n / 2);
    quantised.fit(bytes);
  }
};

// The calling thread's, large enough for the batch `a`.
Buffers& buffers_for(const OutriderDecoder& d, const OutriderAttend& a) {
  static thread_local Buffers mine;
  mine.fit(d, a);
  return mine;
}

// One thread's part of a forward.
class Pass {
 public:
  Pass(const OutriderDecoder& d, const OutriderForward& f, Buffers& b, const Worker& worker)
      : d_(d), f_(f), b_(b), worker_(worker), a_(f.attend), first_(worker.first(a_.rows)), last_(worker.last(a_.rows)) {}

  void run() {
    for (int64_t i = 0; i < d_.num_layers; i++) {
      const uint8_t skipped = f_.skip ? f_.skip[i] : 0;
      a_.keys = f_.keys + i * f_.keys_bytes;
      a_.values = f_.values + i * f_.values_bytes;
      if (!(skipped & kSkipAttention)) attention(d_.layers[i], i ? nullptr : f_.inputs);
      if (!(skipped & kSkipFeedForward)) feed_forward(d_.layers[i]);
      tap(i);
    }
    if (f_.num_logits) logits();
  }

 private:
  Rows input(const OutriderLinear& linear, const float* x, int64_t count) {
    Rows rows = {count, x, nullptr, nullptr, nullptr, nullptr};
    place(rows, linear.inputs, b_.quantised.data());
    return rows;
  }

  // This thread's rows of `x`, quantised for `linear`.
  void ready(const OutriderLinear& linear, const float* x) {
    quantise(linear, input(linear, x, a_.rows), first_, last_);
    worker_.barrier();
  }

  void apply(const OutriderLinear& linear, const float* x, float* out) {
    multiply(linear, input(linear, x, a_.rows), out, worker_);
    worker_.barrier();
  }

  // What the last sublayer adds to row r and has not added yet; null when there was none.
  const float* pending(int64_t r) const { return pending_ ? pending_ + r * d_.hidden : nullptr; }

  void normalise(const float* weight) {
    for (int64_t r = first_; r < last_; r++)
      add_norm_row(f_.x + r * d_.hidden, pending(r), weight, b_.normed.data() + r * d_.hidden, d_.hidden, a_.eps);
  }

  // The last matrix of a sublayer, over `x`; what it adds is normalised first where the architecture does that.
  void finish(const OutriderLinear& linear, const float* x, const float* weight) {
    ready(linear, x);
    apply(linear, x, b_.delta.data());
    for (int64_t r = first_; weight && r < last_; r++) {
      float* row = b_.delta.data() + r * d_.hidden;
      norm_row(row, weight, row, d_.hidden, a_.eps);
    }
    pending_ = b_.delta.data();
  }

  // `given`: what the projections see; null: the norm of x.
  void attention(const OutriderLayer& layer, const float* given) {
    if (!given) normalise(layer.norm);
    const float* inputs = given ? given : b_.normed.data();
    ready(layer.qkv, inputs);
    apply(layer.qkv, inputs, b_.qkv.data());
    a_.q = b_.qkv.data();
    a_.k = a_.q + a_.q_heads * a_.dim;
    a_.v = a_.k + a_.kv_heads * a_.dim;
    a_.q_stride = a_.kv_stride = layer.qkv.n;
    a_.q_norm = layer.q_norm;
    a_.k_norm = layer.k_norm;
    a_.window = layer.window;
    a_.cos = f_.attend.cos + layer.factors * a_.rows * a_.rotary / 2;
    a_.sin = f_.attend.sin + layer.factors * a_.rows * a_.rotary / 2;
    a_.out = b_.heads.data();
    for (int64_t r = first_; r < last_; r++) write_row(a_, r);
    worker_.barrier();
    attend(a_, worker_);
    worker_.barrier();
    finish(layer.out, b_.heads.data(), layer.out_norm);
  }

  void feed_forward(const OutriderLayer& layer) {
    normalise(layer.mlp_norm);
    ready(layer.gate_up, b_.normed.data());
    apply(layer.gate_up, b_.normed.data(), b_.gate_up.data());
    const int64_t width = layer.down.k;
    for (int64_t r = first_; r < last_; r++) {
      const float* gate = b_.gate_up.data() + r * 2 * width;
      if (d_.gelu) gate_row<true>(gate, b_.gated.data() + r * width, width);
      else gate_row<false>(gate, b_.gated.data() + r * width, width);
    }
    finish(layer.down, b_.gated.data(), layer.down_norm);
  }

  void tap(int64_t index) {
    for (int64_t t = 0; t < f_.num_taps; t++) {
      if (f_.taps[t] != index) continue;
      for (int64_t r = first_; r < last_; r++) {
        float* out = f_.tapped + (r * f_.num_taps + t) * d_.hidden;
        const float *x = f_.x + r * d_.hidden, *delta = pending(r);
        for (int64_t i = 0; i < d_.hidden; i++) out[i] = delta ? x[i] + delta[i] : x[i];
      }
    }
  }

  // The head sees the wanted rows alone, packed together.
  void logits() {
    worker_.barrier();  // the last layer may have been tapped by other threads
    const int64_t from = worker_.first(f_.num_logits), to = worker_.last(f_.num_logits);
    for (int64_t i = from; i < to; i++) {
      const int64_t r = f_.logit_rows ? f_.logit_rows[i] : i;
      add_norm_row(f_.x + r * d_.hidden, pending(r), d_.norm, b_.normed.data() + i * d_.hidden, d_.hidden, a_.eps);
    }
    const Rows rows = input(d_.head, b_.normed.data(), f_.num_logits);
    quantise(d_.head, rows, from, to);
    worker_.barrier();
    multiply(d_.head, rows, f_.logits, worker_);
    worker_.barrier();
    for (int64_t i = from; i < to; i++)
      if (!below_infinity(f_.logits + i * d_.head.n, d_.head.n)) f_.damaged[i] = 1;
  }

  const OutriderDecoder& d_;
  const OutriderForward& f_;
  Buffers& b_;
  const Worker& worker_;
  OutriderAttend a_;
  const int64_t first_, last_;
  const float* pending_ = nullptr;
};

float scaled(const OutriderChain& c, int64_t place) {
  if (c.embedding_format == kFloat32) return static_cast<const float*>(c.embedding)[place] * c.embedding_scale;
  const uint16_t bits = static_cast<const uint16_t*>(c.embedding)[place];
  if (c.embedding_format == kFloat16) return widen(bits) * c.embedding_scale;
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value * c.embedding_scale;
}

// Drafts into c.tokens and c.chances; how many, or -1 when a logit is NaN or infinite.
int64_t draft_chain(const OutriderDecoder& d, OutriderChain& c, Buffers& buffers) {
  const int64_t hidden = d.hidden, half = c.forward.attend.rotary / 2, vocabulary = d.head.n, first_layer = 0;
  std::vector<float> embedded(hidden), inputs(2 * hidden), x(hidden), logits(vocabulary);
  int64_t token = c.token, place = 0, drafted = 0;
  int32_t damaged = 0;
  OutriderForward& f = c.forward;
  f.x = x.data();
  f.inputs = inputs.data();
  f.logits = logits.data();
  f.damaged = &damaged;
  f.taps = &first_layer;
  f.tapped = c.hidden;
  while (drafted < c.levels) {
    const int64_t position = c.position + drafted;
    for (int64_t i = 0; i < hidden; i++) embedded[i] = scaled(c, token * hidden + i);
    norm_row(embedded.data(), c.token_norm, inputs.data(), hidden, f.attend.eps);
    norm_row(c.hidden, c.hidden_norm, inputs.data() + hidden, hidden, f.attend.eps);
    std::copy_n(c.normed_residual ? inputs.data() + hidden : c.hidden, hidden, x.data());
    const int32_t seen = static_cast<int32_t>(position + 1), path_start[2] = {0, 0};
    f.attend.slots = c.slots + position;
    f.attend.context = &c.slots;
    f.attend.context_len = &seen;
    f.attend.path_start = path_start;
    f.attend.cos = c.cos + position * half;
    f.attend.sin = c.sin + position * half;
    Pool::run(f.attend.threads, [&](const Worker& worker) { Pass(d, f, buffers, worker).run(); });
    if (damaged) return -1;
    if (c.out_norm) norm_row(c.hidden, c.out_norm, c.hidden, hidden, f.attend.eps);
    place = argmax(logits.data(), vocabulary);
    shares(logits.data(), vocabulary, 1, &place, c.chances + drafted);
    token = c.tokens[drafted] = c.ids[place];
    c.reach *= c.chances[drafted];
    const bool ends = c.chances[drafted] < c.confidence || c.reach < c.certainty || c.reach < c.floor;
    drafted++;
    if (ends) break;
  }
  return drafted;
}

}  // namespace

}  // namespace outrider

extern "C" {

void outrider_forward(const OutriderDecoder* decoder, const OutriderForward* forward) {
  using namespace outrider;
  Buffers& mine = buffers_for(*decoder, forward->attend);
  Pool::run(forward->attend.threads,
            [&](const Worker& worker) { Pass(*decoder, *forward, mine, worker).run(); });
}

// See OutriderChain; how many tokens were drafted, -1 when a logit is NaN or infinite.
int64_t outrider_chain(const OutriderDecoder* decoder, OutriderChain* chain) {
  using namespace outrider;
  return draft_chain(*decoder, *chain, buffers_for(*decoder, chain->forward.attend));
}

// Write k and v to their slots, then attend: q, k and v are normalised and rotated in place.
void outrider_attend(const OutriderAttend* args) {
  using namespace outrider;
  const OutriderAttend& a = *args;
  int64_t work = 0;
  for (int64_t r = 0; r < a.rows; r++) work += a.context_len[r] + 1;
  work *= a.q_heads * a.dim;
  Pool::run(work > 200000 ? a.threads : 1, [&](const Worker& worker) {
    for (int64_t r = worker.first(a.rows); r < worker.last(a.rows); r++) write_row(a, r);
    worker.barrier();
    attend(a, worker);
  });
}

// out [rows]: the first place of the largest value of each row of x [rows, n].
void outrider_argmax(const float* x, int64_t rows, int64_t n, int64_t* out, int32_t threads) {
  using namespace outrider;
  Pool::run(rows * n > 100000 ? threads : 1, [&](const Worker& worker) {
    for (int64_t r = worker.first(rows); r < worker.last(rows); r++) out[r] = argmax(x + r * n, n);
  });
}

// out [rows, k]: the places of the k largest values of each row of x [rows, n], as topk gives them; k <= n.
void outrider_topk(const float* x, int64_t rows, int64_t n, int64_t k, int64_t* out, int32_t threads) {
  using namespace outrider;
  Pool::run(rows * n > 100000 ? threads : 1, [&](const Worker& worker) {
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t r = worker.first(rows); r < worker.last(rows); r++) topk(x + r * n, n, k, out + r * k, values.data());
  });
}

// out and shares [rows, k]: the places of the k largest values of each row, and their shares of its softmax.
void outrider_likeliest(const float* x, int64_t rows, int64_t n, int64_t k, int64_t* out, float* shares,
                        int32_t threads) {
  using namespace outrider;
  Pool::run(rows * n > 100000 ? threads : 1, [&](const Worker& worker) {
    for (int64_t r = worker.first(rows); r < worker.last(rows); r++) {
      topk(x + r * n, n, k, out + r * k, shares + r * k);
      outrider::shares(x + r * n, n, k, out + r * k, shares + r * k);
    }
  });
}

// out [rows, dim] = rms_norm(x [rows, dim]) * weight [dim].
void outrider_norm(const float* x, const float* weight, int64_t rows, int64_t dim, float eps, float* out) {
  for (int64_t r = 0; r < rows; r++) outrider::norm_row(x + r * dim, weight, out + r * dim, dim, eps);
}

}  // extern "C"
