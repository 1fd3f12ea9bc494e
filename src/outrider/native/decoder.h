// A whole forward in one call: the layers of a decoder of the form normalise, attend, normalise, gate.
#pragma once
#include "attention.h"
#include "linear.h"

extern "C" {

enum OutriderSkip : uint8_t { kSkipAttention = 1, kSkipFeedForward = 2 };

struct OutriderLayer {
  const float *norm, *q_norm, *k_norm, *mlp_norm;  // q_norm and k_norm may be null
  const float *out_norm, *down_norm;               // of what is added to the residual, or null
  OutriderLinear qkv, out, gate_up, down;
  int64_t window;   // 0: unlimited
  int64_t factors;  // which of the rotary factors
};

struct OutriderDecoder {
  const OutriderLayer* layers;
  const float* norm;  // before the head, or null
  OutriderLinear head;
  int64_t num_layers, hidden;
  int32_t gelu, unused;  // gelu 1: the gate goes through GELU in its tanh form, else through SiLU
};

struct OutriderForward {
  OutriderAttend attend;      // of the batch; its cos and sin are [kinds of factors, rows, rotary / 2]; its inputs,
                              // cache, norms and window are set for every layer
  float* x;                   // [rows, hidden] embeddings; the last hidden state afterwards
  char* keys;                 // of all layers
  char* values;
  int64_t keys_bytes, values_bytes;  // of one layer
  const int64_t* logit_rows;  // [num_logits] or null: every row
  int64_t num_logits;
  float* logits;              // [num_logits, vocabulary]
  int32_t* damaged;           // [num_logits] set to 1 where a row holds NaN or +infinity
  const int64_t* taps;        // [num_taps] layers, ascending, whose outputs are wanted
  int64_t num_taps;
  float* tapped;              // [rows, num_taps * hidden]
  const float* inputs;        // [rows, width] of the first layer's attention, in the place of its norm of x, or null
  const uint8_t* skip;        // [num_layers] or null: sublayers (OutriderSkip) that add nothing and cache nothing
};

// A chain that a recurrent head drafts greedily: every row is the likeliest token of the row before, beside its output.
struct OutriderChain {
  OutriderForward forward;     // of one row; what changes from row to row is set here
  const void* embedding;       // [vocabulary, hidden] in embedding_format
  const float *token_norm, *hidden_norm;  // [hidden], of what the projections see: token, then hidden state
  const float* out_norm;       // [hidden] of the output that the next row takes, or null: as it is
  const float *cos, *sin;      // [positions, rotary / 2] of all positions
  const int32_t* slots;        // of the sequence, in position order
  const int64_t* ids;          // [draft vocabulary] the target's ids
  int64_t position, levels;    // of the first row; rows at most
  int64_t token;               // of the first row
  float* hidden;               // [hidden] beside it
  float embedding_scale;
  float reach;                 // probability of the path so far
  float confidence, certainty, floor;  // the chain ends behind a token below the first, or with a path below the others
  int32_t embedding_format;    // enum Format
  int32_t normed_residual;     // 1: the normed hidden state is the residual, else as it is
  int64_t* tokens;             // [levels] out: drafted
  float* chances;              // [levels] out: their probabilities
};

}  // extern "C"
