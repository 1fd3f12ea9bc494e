// The race: the same prompt and seed without and with speculation, and whether the texts are one.

import { Answer } from "./answer.js";
import { follow } from "./chat.js";
import { announce, byId, copyButton, el, fixed, icon, rate, seconds, whole } from "./dom.js";
import { Meter } from "./meter.js";

class Lane {
  constructor(kind, view) {
    this.kind = kind;
    this.name = el("h2");
    this.speed = el("span", { class: "speed", text: "\u2013" });
    this.facts = el("p", { class: "facts" });
    this.bar = el("span");
    this.body = el("div", { class: "answer", tabindex: "0" });
    this.state = el("span", { class: "state" });
    const copy = copyButton(() => this.answer.text, "the text");
    const head = el("header", {}, this.name, this.state, copy);
    const figures = el("p", { class: "figures" }, this.speed, el("span", { class: "unit", text: "tokens/s" }));
    this.node = el("article", { class: `lane ${kind}` }, head, figures, el("div", { class: "track", "aria-hidden": "true" }, this.bar), this.facts, this.body);
    this.reset(kind === "plain" ? "Plain decoding" : "Speculative", view);
  }

  reset(name, view) {
    this.name.textContent = name;
    this.body.setAttribute("aria-label", name);
    this.answer = new Answer(this.body, view);
    this.meter = new Meter();
    this.body.replaceChildren();
    this.speed.textContent = "\u2013";
    this.facts.textContent = this.state.textContent = "";
    this.bar.style.width = "0";
    this.reason = null;
  }

  tick(most) {
    const { meter } = this;
    this.speed.textContent = rate(meter.speed);
    this.bar.style.width = `${Math.min(100, (100 * meter.tokens) / most)}%`;
    const more = meter.drafted ? ` \u00b7 ${fixed(meter.perStep, 2)} tokens per step` : "";
    this.facts.textContent = `${whole(meter.tokens)} tokens in ${seconds(meter.decodeSeconds)}${more} \u00b7 first token ${seconds(meter.firstSeconds)}`;
    this.body.scrollTop = this.body.scrollHeight;
  }

  // Each lane's cache stands apart, so that none finds what the other has computed.
  async run(settings, turns, method, seed, salt, signal) {
    const request = { ...settings.request(method, seed), cache_salt: `${salt}-${this.kind}` };
    this.meter = new Meter();
    this.state.textContent = "running\u2026";
    const tick = () => this.tick(request.max_tokens || this.meter.tokens);
    this.reason = await follow(settings, turns, request, this.answer, this.meter, signal, tick);
    this.bar.style.width = "100%";
    this.state.textContent = this.reason === "stopped" ? "stopped" : "done";
  }
}

export class Race {
  constructor(settings) {
    this.settings = settings;
    const view = { markdown: true };
    this.lanes = { plain: new Lane("plain", view), speculative: new Lane("speculative", view) };
    byId("lanes").append(this.lanes.plain.node, this.lanes.speculative.node);
  }

  redraw() {
    for (const lane of Object.values(this.lanes)) {
      lane.answer.view = this.settings.view;
      lane.answer.render(true);
    }
  }

  // Run both, in the order that is chosen, and say what came out. Raises Error without a method to race.
  async send(text, signal) {
    const method = this.settings.method;
    if (method === null) throw new Error("Choose the method that races against plain decoding.");
    const { plain, speculative } = this.lanes, seed = this.settings.seed(), view = this.settings.view;
    const turns = [{ role: "user", content: text }], salt = `race-${Math.random().toString(36).slice(2)}`;
    const together = document.querySelector("input[name=order]:checked").value === "both";
    plain.reset("Plain decoding", view);
    speculative.reset(`With ${method.id}`, view);
    const run = (lane, chosen) => lane.run(this.settings, turns, chosen, seed, salt, signal);
    verdict("", "Warming up\u2026", "A few tokens, so that neither pays for the first run.");
    try {
      await this.warm(turns, method, seed, salt, signal);
      verdict("", "Racing\u2026", together ? "Both at the same time: they share the machine, so the times tell less." : "One after the other: each has the machine to itself.");
      if (together) await Promise.all([run(plain, null), run(speculative, method)]);
      else {
        await run(plain, null);
        if (!signal.aborted) await run(speculative, method);
      }
    } catch (error) {
      verdict("", "The race broke off.", "");
      throw error;
    }
    this.judge(method, seed, together);
  }

  async warm(turns, method, seed, salt, signal) {
    const request = { ...this.settings.request(method, seed), max_tokens: 8, cache_salt: `${salt}-warm` };
    await follow(this.settings, turns, request, new Answer(el("div"), { markdown: false }), new Meter(), signal, () => {});
  }

  judge(method, seed, together) {
    const { plain, speculative } = this.lanes;
    if ([plain.reason, speculative.reason].some((reason) => reason === null || reason === "stopped")) return verdict("", "Stopped.", "No verdict without both texts.");
    const ratio = speculative.meter.speed / plain.meter.speed, place = firstDifference(plain.answer.text, speculative.answer.text);
    const how = together ? "at the same time, sharing the machine" : "one after the other";
    const times = `${seconds(plain.meter.decodeSeconds)} against ${seconds(speculative.meter.decodeSeconds)} from the first token to the last, ${how} \u00b7 seed ${seed}`;
    if (place === null) return verdict("same", `Identical text, ${fixed(ratio, 2)} times the speed`, times, ratio);
    const why = method.lossless ? "outrider check tells a numerical tie from a fault." : `Its rule (${method.verifier}) is lossy.`;
    verdict("differs", `The texts differ from character ${place + 1} on (${fixed(ratio, 2)} times the speed)`, `${why} ${times}`, ratio);
  }
}

// Where two texts part; null: nowhere.
export function firstDifference(left, right) {
  if (left === right) return null;
  let at = 0;
  while (left[at] === right[at]) at += 1;
  return at;
}

function verdict(kind, headline, words) {
  const box = byId("verdict"), mark = kind ? icon(kind === "same" ? "done" : "differs") : null;
  box.className = `verdict ${kind}`;
  box.replaceChildren(el("p", { class: "headline" }, mark, headline), el("p", { text: words }));
  if (kind) announce(`${headline}. ${words}`);
}
