// The panel at the side: what is asked for, kept while the tab is open.

import { byId, el, recall, remember } from "./dom.js";

const FIELDS = ["method", "tokens", "temperature", "top_p", "seed", "max_tokens", "system", "colours", "ghosts", "markdown"];
export const PLAIN = "plain";

export class Settings {
  constructor(changed) {
    this.model = null;
    this.changed = changed;
    for (const name of FIELDS) byId(name).addEventListener("change", () => this.store(name));
  }

  // Fill in what the server serves, and what this tab remembers.
  open(model) {
    this.model = model;
    const option = (id) => el("option", { value: id, text: id });
    const usable = model.methods.filter((method) => !method.needs_prediction && !method.needs_structure); // nobody gives either here
    byId("method").replaceChildren(...usable.map((method) => option(method.id)), el("option", { value: PLAIN, text: "plain (no speculation)" }));
    byId("temperature").value = model.sampling.temperature;
    byId("top_p").value = model.sampling.top_p;
    byId("system-field").hidden = !model.chat;
    const kept = JSON.parse(recall("settings") || "{}");
    for (const [name, value] of Object.entries(kept)) {
      const field = byId(name);
      if (field.type === "checkbox") field.checked = value;
      else if (name !== "method" || [...field.options].some((each) => each.value === value)) field.value = value;
    }
    this.show();
  }

  store(name) {
    const field = byId(name), kept = JSON.parse(recall("settings") || "{}");
    kept[name] = field.type === "checkbox" ? field.checked : field.value;
    remember("settings", JSON.stringify(kept));
    this.show();
  }

  show() {
    const method = this.method;
    const words = method ? `${method.summary.replaceAll("`", "")}.${method.lossless ? "" : ` Its rule (${method.verifier}) is lossy: the text may differ.`}` : "One token a step, as without Outrider.";
    byId("method-hint").textContent = words.charAt(0).toUpperCase() + words.slice(1);
    byId("tokens").disabled = !method;
    if (method) byId("tokens").placeholder = method.num_speculative_tokens ?? "planned";
    this.changed();
  }

  // The chosen method, or null for plain decoding.
  get method() {
    return this.model.methods.find((method) => method.id === byId("method").value) || null;
  }

  get view() {
    return { colours: byId("colours").checked, ghosts: byId("ghosts").checked, markdown: byId("markdown").checked };
  }

  // The fields of a request, but for the prompt; `method`: null for plain decoding. Raises Error that says what is wrong.
  request(method, seed) {
    const out = { seed: seed ?? this.seed(), speculation: { explain: true, enabled: method !== null } };
    for (const name of ["temperature", "top_p", "max_tokens"]) {
      const value = number(name);
      if (value !== null) out[name] = value;
    }
    if (method === null) return out;
    out.speculation.method = method.id;
    const count = number("tokens");
    if (count !== null) out.speculation.num_speculative_tokens = count;
    return out;
  }

  seed() {
    return number("seed") ?? Math.floor(Math.random() * 2 ** 31);
  }

  // Where and what to ask: a conversation, or for a model without a chat template the text that it continues.
  prompt(turns) {
    if (!this.model.chat) return { path: "v1/completions", prompt: turns[turns.length - 1].content };
    const system = byId("system").value.trim();
    return { path: "v1/chat/completions", messages: [...(system ? [{ role: "system", content: system }] : []), ...turns] };
  }
}

function number(name) {
  const field = byId(name);
  if (!field.checkValidity()) throw new Error(`${field.labels[0].textContent}: ${field.validationMessage}`);
  return field.value === "" || field.disabled ? null : Number(field.value);
}
