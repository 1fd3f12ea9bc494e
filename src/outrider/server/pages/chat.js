// The conversation: turns, and the answer that comes in.

import { Answer } from "./answer.js";
import { ApiError, stream } from "./client.js";
import { announce, byId, copyButton, el } from "./dom.js";
import { Meter } from "./meter.js";

// Follow one streamed answer into `answer` and `meter`; how it ended, in a word.
export async function follow(settings, turns, request, answer, meter, signal, tick) {
  const { path, ...prompt } = settings.prompt(turns);
  let reason = null;
  try {
    for await (const chunk of stream(path, { ...prompt, ...request }, signal)) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason || reason;
      if (!choice.outrider) continue;
      meter.add(choice.outrider.steps);
      answer.add(choice.outrider.steps);
      tick();
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    reason = "stopped";
  } finally {
    answer.render();
    tick();
  }
  if (reason === null) throw new ApiError(0, "the answer broke off before its end: the server may have stopped");
  return reason;
}

const ENDS = { length: "ended at max tokens", stopped: "stopped" };

export class Chat {
  constructor(settings, tick) {
    this.settings = settings;
    this.tick = tick;
    this.answers = [];
    this.clear();
  }

  clear() {
    this.turns = [];
    this.answers = [];
    byId("log").replaceChildren();
    byId("welcome").hidden = false;
    byId("meter").hidden = true;
  }

  redraw() {
    for (const answer of this.answers) {
      answer.view = this.settings.view;
      answer.render(true);
    }
  }

  // Ask, and show the answer as it comes in. A turn without an answer is forgotten.
  async send(text, signal) {
    const method = this.settings.method, request = this.settings.request(method);
    byId("welcome").hidden = true;
    byId("meter").hidden = false;
    const asked = this.turn("user", "You", el("p", { class: "plain-text", text }));
    const body = el("div", { class: "answer" }), foot = el("footer");
    const turn = this.turn("assistant", this.settings.model.id, body);
    turn.append(foot);
    turn.setAttribute("aria-busy", "true");
    turn.classList.add("running");
    const answer = new Answer(body, this.settings.view), meter = new Meter();
    this.answers.push(answer);
    this.turns.push({ role: "user", content: text });
    const log = byId("log");
    const tick = () => {
      this.tick(meter);
      if (log.dataset.away !== "true") turn.scrollIntoView({ block: "end" });
    };
    log.dataset.away = "false";
    try {
      const reason = await follow(this.settings, this.turns, request, answer, meter, signal, tick);
      this.turns.push({ role: "assistant", content: answer.text });
      const how = [method ? method.id : "plain", meter.words(), `seed ${request.seed}`, ...(ENDS[reason] ? [ENDS[reason]] : [])];
      foot.replaceChildren(copyButton(() => answer.text, "the answer"), el("span", { text: how.join(" \u00b7 ") }));
      tick();
      announce(reason === "stopped" ? "Stopped." : `Answer: ${answer.text}`);
    } catch (error) {
      this.turns.pop();
      if (!answer.text) {
        this.answers.pop();
        asked.remove();
        turn.remove();
        byId("welcome").hidden = this.turns.length > 0;
      }
      throw error;
    } finally {
      turn.removeAttribute("aria-busy");
      turn.classList.remove("running");
    }
  }

  turn(role, name, body) {
    const node = el("article", { class: `turn ${role}`, "aria-label": name }, el("header", { text: name }), body);
    byId("log").append(node);
    return node;
  }
}
