// What is measured while an answer comes in, and how it is shown.

import { el, fixed, percent, rate, seconds, whole } from "./dom.js";

// Figures of one answer, by this page's clock.
export class Meter {
  constructor() {
    this.began = performance.now();
    this.first = this.latest = null;
    this.tokens = this.steps = this.drafted = this.accepted = 0;
    this.firstTokens = 0;
    this.draftSeconds = this.verifySeconds = 0;
    this.strip = [];
  }

  add(steps) {
    if (!steps.length) return;
    this.latest = performance.now();
    for (const step of steps) {
      this.tokens += step.tokens.length;
      if (step.prefill) continue;
      this.steps += 1;
      this.drafted += step.num_drafted;
      this.accepted += step.num_accepted;
      this.draftSeconds += step.draft_seconds;
      this.verifySeconds += step.verify_seconds;
      this.strip.push({ accepted: step.num_accepted, own: step.tokens.length - step.num_accepted, rejected: step.rejected.length });
    }
    if (this.first === null) {
      this.first = this.latest;
      this.firstTokens = this.tokens;
    }
  }

  // Tokens after the first ones per second.
  get speed() {
    return (this.tokens - this.firstTokens) / this.decodeSeconds;
  }

  get decodeSeconds() {
    return this.first === null ? NaN : (this.latest - this.first) / 1000;
  }

  get firstSeconds() {
    return this.first === null ? NaN : (this.first - this.began) / 1000;
  }

  get perStep() {
    return (this.tokens - 1) / this.steps;
  }

  get acceptance() {
    return this.accepted / this.drafted;
  }

  get draftShare() {
    return this.draftSeconds / (this.draftSeconds + this.verifySeconds);
  }

  // In one line, for below the answer.
  words() {
    const parts = [`${whole(this.tokens)} tokens`, `${rate(this.speed)} tokens/s`];
    if (this.drafted) parts.push(`${fixed(this.perStep, 2)} tokens per step`, `${percent(this.acceptance)} of ${whole(this.drafted)} drafted accepted`);
    return parts.join(" \u00b7 ");
  }
}

const BARS = 64;

// The tiles above the prompt.
export class MeterView {
  constructor(list) {
    const tile = (name) => {
      const value = el("dd", { text: "\u2013" });
      list.append(el("div", {}, el("dt", { text: name }), value));
      return value;
    };
    this.speed = tile("tokens/s");
    this.perStep = tile("tokens per step");
    this.acceptance = tile("drafted, accepted");
    this.first = tile("first token");
    this.share = tile("time drafting");
    this.svg = el("svg", { class: "strip", role: "img", "aria-label": "tokens of the latest steps" });
    list.append(el("div", { class: "wide" }, el("dt", { text: "latest steps" }), el("dd", {}, this.svg)));
  }

  show(meter) {
    this.speed.textContent = rate(meter.speed);
    this.perStep.textContent = fixed(meter.perStep, 2);
    this.acceptance.textContent = meter.drafted ? percent(meter.acceptance) : "\u2013";
    this.first.textContent = seconds(meter.firstSeconds);
    this.share.textContent = meter.drafted ? percent(meter.draftShare) : "\u2013";
    this.bars(meter.strip.slice(-BARS));
  }

  bars(steps) {
    const wide = this.svg.clientWidth / BARS, high = this.svg.clientHeight;
    const most = Math.max(4, ...steps.map((step) => step.accepted + step.own + step.rejected)), unit = high / most;
    const nodes = [];
    steps.forEach((step, index) => {
      let y = high;
      for (const [kind, count] of [["own", step.own], ["drafted", step.accepted], ["rejected", step.rejected]]) {
        if (!count) continue;
        y -= unit * count;
        nodes.push(el("rect", { class: `bar-${kind}`, x: index * wide, y: y + 0.5, width: Math.max(1, wide - 1.5), height: Math.max(1, unit * count - 1) }));
      }
    });
    this.svg.replaceChildren(...nodes);
  }
}
