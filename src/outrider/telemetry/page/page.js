"use strict";
// The page: reads the record, fills the sections, keeps the chosen step.

const trace = JSON.parse(document.getElementById("record").textContent);
const byId = (id) => document.getElementById(id);
const stats = trace.stats;
let current = 0;
trace.sources = new Set(trace.steps.flatMap((step) => step.nodes.map((node) => node.source))).size;

const fixed = (value, digits) => (value === null || value === undefined ? "\u2013" : value.toFixed(digits));
const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "\u2013");
const table = (caption, head, rows) => el("table", {}, el("caption", { text: caption }),
  el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col", text })))),
  el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell) => (cell instanceof Node ? cell : el("td", { text: cell })))))));

function header() {
  const method = trace.method || "plain decoding", name = trace.model.model || trace.model.name || "";
  document.title = `Outrider trace: ${method}`;
  byId("title").textContent = name ? `${method} on ${name}` : method;
  const facts = [];
  if (trace.verifier) facts.push(`verifier ${trace.verifier} (${trace.lossless ? "lossless" : "lossy"})`);
  facts.push(`temperature ${trace.settings.sampling.temperature}`, `seed ${trace.settings.sampling.seed}`);
  if (trace.model.dtype) facts.push(`${trace.model.dtype} weights`);
  if (trace.model.threads) facts.push(counted(trace.model.threads, "thread"));
  if (trace.model.exact !== undefined) facts.push(trace.model.exact ? "exact" : "not exact");
  facts.push(counted(trace.num_prompt_tokens, "prompt token"), `${counted(stats.num_completion_tokens, "token")}, ended by ${trace.finish_reason}`);
  byId("subtitle").textContent = facts.join(" \u00b7 ");
  const plain = trace.plain;
  const tiles = [
    ["mean acceptance length", fixed(stats.mean_acceptance_length, 2), "committed tokens after the first / steps after prefill"],
    ["tokens/s", fixed(trace.tokens_per_second, 1), "tokens after the first, prefill apart"],
    ["steps after prefill", stats.num_steps, `${stats.num_spec_steps} with a draft`],
    ["draft acceptance rate", fixed(stats.draft_acceptance_rate, 2), `${stats.num_accepted_draft_tokens} accepted of ${stats.num_draft_tokens} verified`],
  ];
  if (plain) {
    const gain = plain.tokens_per_second ? trace.tokens_per_second / plain.tokens_per_second : null;
    tiles.splice(2, 0, ["plain decoding, tokens/s", fixed(plain.tokens_per_second, 1),
      `${fixed(gain, 2)}x with ${trace.method || "itself"}; text ${plain.identical ? "equal" : "NOT equal"}`]);
  }
  byId("tiles").append(...tiles.map(([term, value, note]) => el("div", {}, el("dt", { text: term }), el("dd", { text: value }, el("small", { text: note })))));
}

// Rejected tokens of a step as text would have gone on: the first rejected node after the path, and what follows it.
function ghosts(step) {
  const out = [];
  let at = step.path.length ? step.path[step.path.length - 1] : -1;
  for (;;) {
    const next = step.nodes.findIndex((node) => node.parent === at && (node.outcome === "rejected" || node.outcome === "not reached"));
    if (next < 0) return out;
    out.push(next);
    at = next;
  }
}

// White space that would not be seen gets a mark beside it.
function spell(span, text) {
  for (const part of text.split(/(\n)/)) {
    if (part === "\n") span.append(el("span", { class: "ws", text: "\u21b5" }), "\n");
    else if (part) span.append(part);
  }
  if (text === "") span.append(el("span", { class: "ws", text: "\u2205" }));
  return span;
}

function tokenSpan(step, kind, text, target) {
  const span = spell(el("span", { class: kind, onclick: () => { go(step.number, false); select(target); } }), text);
  tip(span, () => describe(trace, step, target));
  return span;
}

function text() {
  const box = byId("text");
  for (const step of trace.steps) {
    const parts = step.emitted.map((token) => tokenSpan(step, `t ${token.kind}`, token.text, { token }));
    const rejected = ghosts(step).map((node) => tokenSpan(step, "ghost", step.nodes[node].text.replace(/\n/g, "\u21b5"), { node }));
    const ended = step.emitted.length > step.path.length;
    if (ended) parts.splice(parts.length - 1, 0, ...rejected);
    box.append(el("span", { class: "step", id: `at-${step.number}` }, ...parts));
  }
  const kinds = new Set(trace.steps.flatMap((step) => step.emitted.map((token) => token.kind)));
  const names = { drafted: "drafted, accepted", bonus: "bonus", recovered: "recovered", plain: "plain", first: "first" };
  byId("legend").append(...Object.keys(names).filter((kind) => kinds.has(kind)).map((kind) =>
    el("li", {}, el("span", { class: `key ${kind}`, text: names[kind], title: KINDS[kind] }))),
    el("li", {}, el("span", { class: "key ghost", text: "rejected" })));
  const prompt = byId("prompt");
  prompt.querySelector("summary").textContent = `prompt, ${counted(trace.num_prompt_tokens, "token")}`;
  prompt.querySelector("pre").textContent = trace.prompt;
  const follow = () => {
    box.classList.toggle("without-ghosts", !byId("ghosts").checked);
    box.classList.toggle("with-bounds", byId("bounds").checked);
  };
  ["ghosts", "bounds"].forEach((id) => byId(id).addEventListener("change", follow));
  follow();
}

const PARTS = ["draft", "verify", "overhead"];
const seconds = (step) => PARTS.map((part) => step[`${part}_seconds`]);
const total = (values) => values.reduce((sum, value) => sum + value, 0);

function strip() {
  const box = byId("strip"), steps = trace.steps, left = 52, high = 44, low = 44;
  const width = Math.max(3, Math.min(26, (box.clientWidth - left - 4) / steps.length));
  const most = Math.max(1, ...steps.map((step) => step.emitted.length));
  const times = steps.slice(1).map((step) => total(seconds(step))).sort((a, b) => a - b);
  const longest = times.length ? times[Math.floor(0.98 * (times.length - 1))] : 1; // a stall must not flatten the rest
  const svg = el("svg", { width: left + width * steps.length + 4, height: high + low + 6, role: "img", "aria-label": "tokens and time of every step" },
    el("text", { x: 0, y: 11, text: counted(most, "token") }), el("text", { x: 0, y: high + low + 2, text: times.length ? milliseconds(longest) : "" }));
  steps.forEach((step, index) => {
    const x = left + index * width, bar = Math.max(1, width - 1);
    let y = high;
    for (const token of step.emitted) {
      y -= high / most;
      svg.append(el("rect", { x, y, width: bar, height: Math.max(1, high / most - 0.6), style: `fill: var(--${token.kind === "first" ? "plain" : token.kind})` }));
    }
    y = high + 3;
    seconds(step).forEach((value, part) => {
      const height = Math.min((low * value) / longest, high + low + 5 - y);
      svg.append(el("rect", { x, y, width: bar, height: Math.max(0, height), style: `fill: var(--${PARTS[part]})` }));
      y += height;
    });
  });
  svg.append(el("rect", { id: "cursor", class: "now", y: 0.5, width, height: high + low + 5 }));
  steps.forEach((step, index) => {
    const slot = el("rect", { class: "slot", x: left + index * width, y: 0, width, height: high + low + 6, onclick: () => go(index) });
    tip(slot, () => `step ${step.number}: ${counted(step.emitted.length, "token")}, ${milliseconds(total(seconds(step)))}\n${step.words}`);
    svg.append(slot);
  });
  box.replaceChildren(svg);
}

function go(number, scroll = true) {
  current = Math.max(0, Math.min(trace.steps.length - 1, number));
  const step = trace.steps[current];
  byId("tip").hidden = true;
  document.querySelectorAll(".step.now").forEach((node) => node.classList.remove("now"));
  const span = byId(`at-${current}`), box = byId("text");
  span.classList.add("now");
  if (scroll) {
    const spot = span.getBoundingClientRect(), frame = box.getBoundingClientRect();
    if (spot.top < frame.top || spot.bottom > frame.bottom) box.scrollTop += spot.top - frame.top - box.clientHeight / 3;
  }
  byId("step-title").textContent = current ? `Step ${current} of ${trace.steps.length - 1}` : "Prefill";
  byId("slider").value = current;
  ["first", "previous"].forEach((id) => (byId(id).disabled = current === 0));
  ["next", "last"].forEach((id) => (byId(id).disabled = current === trace.steps.length - 1));
  const cursor = byId("cursor"), slot = document.querySelectorAll("#strip .slot")[current];
  cursor.setAttribute("x", slot.getAttribute("x"));
  facts(step);
  drawTree(byId("tree"), trace, step, select);
  pathTable(step);
  select(null);
  history.replaceState(null, "", `#step-${current}`);
}

function facts(step) {
  const verified = step.nodes.filter((node) => node.outcome !== "pruned").length;
  const numbers = step.number === 0 ? [`prefill ${milliseconds(stats.prefill_seconds)}`] : [
    `${step.nodes.length} proposed, ${verified} verified, ${step.path.length} accepted, ${step.emitted.length} committed`,
    ...PARTS.map((part) => `${part} ${milliseconds(step[`${part}_seconds`])}`),
    `${counted(step.num_rows, "row")} in the forward`,
  ];
  byId("facts").replaceChildren(el("p", { class: "words", text: step.words }), el("p", { class: "numbers", text: numbers.join(" \u00b7 ") }));
}

function pathTable(step) {
  const rows = step.best.slice(0, step.emitted.length).map((best, index) => {
    const token = step.emitted[index];
    return [String(step.position + index + 1), el("td", { class: "token", text: shown(token.text) }), probability(shownP(token, trace.greedy)), token.kind,
      el("td", { class: "wrap" }, ...best.map((item) => el("span", { class: "candidate" }, el("span", { class: "token", text: shown(item.text) }), ` ${probability(shownP(item, trace.greedy))}`)))];
  });
  const law = trace.greedy ? "p is the target's before the temperature; at temperature 0 its best token is taken" : "p is the target's processed law";
  byId("path").replaceChildren(table(`Committed in this step (${law})`, ["token", "text", "p", "kind", "the target's likeliest here"], rows));
}

function select(target, card) {
  document.querySelectorAll(".node.now").forEach((node) => node.classList.remove("now"));
  if (card) card.classList.add("now");
  const step = trace.steps[current], box = byId("node");
  if (!target) return box.replaceChildren();
  const [first, ...lines] = describe(trace, step, target).split("\n");
  const rows = lines.map((line) => [el("td", { class: "wrap", text: line })]);
  const best = target.token && target.token.node === null || target.root ? [] : childrenRow(step, target.node);
  box.replaceChildren(table(first, [], [...rows, ...best]));
}

// The children that a node has in the draft, with their numbers.
function childrenRow(step, index) {
  const below = step.nodes.filter((node) => node.parent === index);
  if (index === undefined || !below.length) return [];
  return [[el("td", { class: "wrap", text: `children: ${below.map((node) => `${shown(node.text)} p ${probability(shownP(node, trace.greedy))} (${node.outcome})`).join(", ")}` })]];
}

function acceptance() {
  const per = stats.per_position_acceptance, conditional = stats.conditional_acceptance, box = byId("acceptance");
  if (!per.length) return box.append(el("p", { class: "quiet", text: "No step had a draft." }));
  const count = Math.min(per.length, 16), slot = 34, high = 120, base = high + 16;
  const svg = el("svg", { class: "bars", width: 30 + slot * count, height: base + 18, role: "img", "aria-label": "acceptance by position; the numbers stand in the table" });
  for (const level of [0, 0.5, 1]) {
    svg.append(el("line", { x1: 28, x2: 30 + slot * count, y1: base - high * level, y2: base - high * level, style: "stroke: var(--line)" }), el("text", { x: 0, y: base - high * level + 4, text: level.toFixed(1) }));
  }
  for (let at = 0; at < count; at++) {
    const x = 32 + at * slot, values = [[per[at], "--drafted"], [conditional[at], "--bonus"]];
    values.forEach(([value, colour], index) => value !== null && value !== undefined && svg.append(el("rect", { x: x + index * 13, y: base - high * value, width: 12, height: high * value, style: `fill: var(${colour})` })));
    svg.append(el("text", { x: x + 9, y: base + 13, text: at + 1 }));
  }
  const key = (colour, words) => el("li", {}, el("span", { class: "dot", style: `background: var(${colour})` }), words);
  const rows = per.map((value, at) => [String(at + 1), fixed(value, 2), fixed(conditional[at], 2), String(stats.proposed_per_position[at]), String(stats.tested_per_position[at] || 0), String(stats.accepted_per_position[at] || 0)]);
  box.append(
    el("ul", { class: "legend" }, key("--drafted", "per-position: P(this many accepted), of all steps with a draft"), key("--bonus", "conditional: P(accepted, given all before it and a candidate here)")),
    el("div", { class: "scroll" }, svg),
    el("div", { class: "scroll" }, table(`over ${stats.num_spec_steps} steps with a draft`, ["position", "per-position", "conditional", "steps proposed", "tested", "accepted"], rows)));
}

function time() {
  const values = PARTS.map((part) => stats[`${part}_seconds`]), all = stats.decode_seconds, box = byId("time");
  const plain = trace.plain, steps = Math.max(1, stats.num_steps);
  const bar = el("div", { class: "stack" }, ...PARTS.map((part, index) => el("span", { style: `flex: ${values[index] / (all || 1)} 0 0; background: var(--${part})`, title: part })));
  const rows = PARTS.map((part, index) => [el("td", {}, el("span", { class: "dot", style: `background: var(--${part})` }), part), milliseconds(values[index]), percent(values[index], all), milliseconds(values[index] / steps)]);
  rows.push(["steps after prefill", milliseconds(all), "", milliseconds(all / steps)], ["prefill", milliseconds(stats.prefill_seconds), "", ""]);
  if (plain) rows.push(["plain decoding, after prefill", milliseconds(plain.decode_seconds), "", milliseconds(plain.decode_seconds / Math.max(1, plain.num_tokens - 1))]);
  box.append(bar, el("div", { class: "scroll" }, table("draft: the drafter; verify: the target's forward; overhead: all else", ["", "in all", "share", "a step"], rows)));
}

function run() {
  byId("run").append(el("pre", { text: JSON.stringify({ settings: trace.settings, model: trace.model, reasons: trace.reasons }, null, 1) }));
}

function keys(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.id === "slider" || event.target.closest("summary")) return;
  const moves = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: trace.steps.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  go(moves[event.key]);
}

header();
text();
strip();
acceptance();
time();
run();
for (const [outcome, words] of Object.entries(OUTCOMES)) byId("tree-legend").append(el("li", {}, el("span", { class: `key ${outcome.replace(" ", "-")}`, text: outcome, title: words })));
byId("tree-legend").append(el("li", { class: "quiet", text: "p: the target's; q: the draft law's; s: the drafter's own score of a delta edge" }));
byId("slider").max = trace.steps.length - 1;
byId("slider").addEventListener("input", (event) => go(Number(event.target.value)));
byId("first").addEventListener("click", () => go(0));
byId("previous").addEventListener("click", () => go(current - 1));
byId("next").addEventListener("click", () => go(current + 1));
byId("last").addEventListener("click", () => go(trace.steps.length - 1));
addEventListener("keydown", keys);
addEventListener("hashchange", () => go(Number(location.hash.replace("#step-", "")) || 0));
addEventListener("resize", () => { strip(); go(current, false); });
const drafted = trace.steps.findIndex((step) => step.nodes.length > 0);
go(location.hash.startsWith("#step-") ? Number(location.hash.slice(6)) || 0 : drafted >= 0 ? drafted : 1);
