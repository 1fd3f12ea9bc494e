// What follows from the counts of /stats: differences between two moments, pools over methods, and rates.

const SUMS = ["num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_prompt_tokens", "num_tokens",
  "prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds"];
const LISTS = ["accepted_per_position", "tested_per_position"];
const KEPT = 330; // seconds of history

const combine = (left, right, sign) => {
  const out = {};
  for (const name of SUMS) out[name] = left[name] + sign * right[name];
  for (const name of LISTS) {
    const width = Math.max(left[name].length, right[name].length);
    out[name] = Array.from({ length: width }, (_, at) => (left[name][at] || 0) + sign * (right[name][at] || 0));
  }
  return out;
};

export const nothing = () => ({ ...Object.fromEntries(SUMS.map((name) => [name, 0])), ...Object.fromEntries(LISTS.map((name) => [name, []])) });
export const pooled = (parts) => parts.reduce((sum, part) => combine(sum, part, 1), nothing());

// Snapshots, of which the latest few minutes are kept.
export class History {
  constructor() {
    this.points = [];
  }

  add(stats, now) {
    const last = this.points[this.points.length - 1];
    if (last && stats.uptime < last.stats.uptime) this.points = []; // the server was started anew
    this.points.push({ now, stats });
    while (this.points[0].now < now - 1000 * KEPT) this.points.shift();
  }

  get latest() {
    return this.points[this.points.length - 1];
  }

  within(seconds) {
    return this.points.filter((point) => point.now >= this.latest.now - 1000 * seconds);
  }

  // Counts by method since `seconds` ago; null: since the server's start.
  methods(seconds) {
    const now = this.latest.stats.methods, then = this.before(seconds)?.methods || {};
    return Object.fromEntries(Object.entries(now).map(([name, counts]) => [name, combine(counts, then[name] || nothing(), -1)]));
  }

  // Some other counts since then, by a function that picks a number.
  since(seconds, pick) {
    const then = this.before(seconds);
    return pick(this.latest.stats) - (then ? pick(then) : 0);
  }

  // The snapshot that a difference starts from; null: zero. A server that is younger than this counts from its start.
  before(seconds) {
    if (seconds === null || this.latest.stats.uptime <= seconds) return null;
    return this.within(seconds)[0].stats;
  }
}

export const acceptance = (counts) => counts.num_accepted_tokens / counts.num_draft_tokens;
export const perStep = (counts) => 1 + counts.num_accepted_tokens / counts.num_steps;
export const seconds = (counts) => counts.prefill_seconds + counts.draft_seconds + counts.verify_seconds + counts.overhead_seconds;
export const chain = (counts) => counts.accepted_per_position.map((count) => count / counts.num_drafts);
export const conditional = (counts) => counts.accepted_per_position.map((count, at) => count / counts.tested_per_position[at]);
