// The dashboard: asks /stats once a second and draws what came.

import * as charts from "./charts.js";
import { get } from "./client.js";
import { acceptance, chain, conditional, History, perStep, pooled, seconds as secondsOf } from "./counts.js";
import { announce, byId, el, fixed, percent, rate, seconds, themeButton, whole } from "./dom.js";

const EVERY = 1000;
const PARTS = [
  { name: "verify", words: "the target's forward over draft and root", colour: "--blue" },
  { name: "draft", words: "the drafters", colour: "--orange" },
  { name: "prefill", words: "prompts", colour: "--purple" },
  { name: "overhead", words: "all else of a step", colour: "--own" },
];
const POSITIONS = [
  { name: "reached and accepted, of all drafts", colour: "--blue" },
  { name: "accepted where it was reached", colour: "--orange" },
];
const BATCH = [{ name: "running", colour: "--blue" }, { name: "waiting", colour: "--orange", dashed: true }];
const MOST_POSITIONS = 12;

const history = new History();
let paused = false, lost = false;

const tiles = Object.fromEntries(
  [["speed", "tokens/s"], ["perStep", "tokens per step"], ["acceptance", "drafted, accepted"], ["gain", "speed against plain"], ["requests", "requests"], ["cache", "cache in use"]].map(([name, title]) => {
    const value = el("span"), more = el("small");
    byId("figures").append(el("div", {}, el("dt", { text: title }), el("dd", {}, value, more)));
    return [name, (main, extra) => {
      value.textContent = main;
      more.textContent = extra;
    }];
  }));

const range = () => {
  const { value } = document.querySelector("input[name=range]:checked");
  return value ? Number(value) : null;
};

function draw() {
  if (!history.latest) return;
  const { stats } = history.latest, chosen = byId("method").value, methods = history.methods(range());
  const counts = chosen ? methods[chosen] : pooled(Object.values(methods));
  figures(stats, counts);
  speed(stats);
  batch(stats);
  positions(counts);
  time(counts);
  cache(stats);
  table(stats, methods);
}

function figures(stats, counts) {
  const { running, waiting } = stats.requests, target = stats.kv_cache.target;
  tiles.speed(rate(stats.tokens_per_second), `${whole(counts.num_tokens)} tokens`);
  tiles.perStep(fixed(perStep(counts), 2), `${whole(counts.num_steps)} steps`);
  tiles.acceptance(percent(acceptance(counts)), `of ${whole(counts.num_draft_tokens)} drafted`);
  tiles.gain(`${fixed(stats.going_rate, 2)} \u00d7`, "of late, by the planner");
  tiles.requests(`${running} + ${waiting}`, "running + waiting");
  tiles.cache(share(target.usage), `of ${whole(target.num_blocks * target.block_size)} tokens`);
}

const share = (value) => percent(value, value > 0 && value < 0.02 ? 1 : 0);

function speed(stats) {
  const span = range() === 60 ? 60 : 300, points = history.within(span).map(({ now, stats: then }) => ({ now, values: [then.tokens_per_second] }));
  charts.lines(byId("speed"), points, span, [{ colour: "--drafted" }], `Tokens per second, now ${rate(stats.tokens_per_second)}`, 10);
}

function batch(stats) {
  const span = range() === 60 ? 60 : 300, points = history.within(span).map(({ now, stats: { requests } }) => ({ now, values: [requests.running, requests.waiting] }));
  const { running, waiting, finished } = stats.requests, ended = Object.values(finished).reduce((sum, count) => sum + count, 0);
  charts.lines(byId("batch"), points, span, BATCH, `${running} requests are running, ${waiting} are waiting`, 4);
  const steps = history.since(range(), (each) => each.batch.num_steps), rows = history.since(range(), (each) => each.batch.rows);
  const preempted = stats.num_preemptions ? ` \u00b7 ${whole(stats.num_preemptions)} preemptions` : "";
  byId("batch-words").textContent = `${fixed(rows / steps, 1)} rows a step \u00b7 latest ${stats.batch.last_rows} \u00b7 ${whole(ended)} requests ended${preempted}`;
}

function positions(counts) {
  const all = chain(counts).slice(0, MOST_POSITIONS), given = conditional(counts);
  if (!counts.num_drafts) return charts.none(byId("positions"), "Nothing was drafted in this time.");
  const words = all.map((value, at) => `${at + 1}: ${percent(value)}, ${percent(given[at])}`).join("; ");
  charts.bars(byId("positions"), all.map((value, at) => [value, given[at]]), POSITIONS, `Acceptance in percent by position, of all drafts and where it was reached. ${words}`);
}

function time(counts) {
  const total = secondsOf(counts), box = byId("time");
  if (!total) return box.replaceChildren(el("p", { class: "none", text: "Nothing was computed in this time." }));
  const bar = el("div", { class: "stack", "aria-hidden": "true" }), rows = [];
  for (const { name, words, colour } of PARTS) {
    const value = counts[`${name}_seconds`], part = el("span", { title: `${name}: ${percent(value / total)}` }), dot = el("span", { class: "dot" });
    part.style.flex = `${value / total} 0 0`;
    part.style.background = dot.style.background = `var(${colour})`;
    bar.append(part);
    const each = name === "prefill" ? "" : seconds(value / counts.num_steps);
    rows.push(el("tr", {}, el("td", { title: words }, dot, name), el("td", { text: percent(value / total, 1) }), el("td", { text: seconds(value) }), el("td", { text: each })));
  }
  const head = el("tr", {}, ...["part", "share", "in all", "a step"].map((text) => el("th", { text, scope: "col" })));
  box.replaceChildren(bar, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

function gauge(name, usage, words, colour) {
  const fill = el("span");
  fill.style.width = `${100 * (usage || 0)}%`;
  fill.style.background = `var(${colour})`;
  const bar = el("div", { class: "gauge", role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": Math.round(100 * (usage || 0)), "aria-valuetext": words }, fill);
  return el("div", { class: "pool" }, el("div", { class: "head" }, el("span", { text: name }), el("span", { text: words })), bar);
}

function cache(stats) {
  const pools = Object.entries(stats.kv_cache).map(([name, pool]) => gauge(name === "target" ? "target" : `draft: ${name}`, pool.usage, `${share(pool.usage)} \u00b7 ${whole(pool.num_used)} of ${whole(pool.num_blocks)} blocks`, "--blue"));
  const hits = history.since(range(), (each) => each.prefix_cache.hit_tokens), asked = history.since(range(), (each) => each.prefix_cache.query_tokens);
  byId("cache").replaceChildren(...pools, gauge("prompt tokens found in the prefix cache", hits / asked, `${percent(hits / asked)} of ${whole(asked)}`, "--drafted"));
}

function table(stats, methods) {
  const heads = ["method", "tokens", "steps", "with a draft", "drafted", "accepted", "acceptance", "tokens per step", "time drafting", "acceptance lately"];
  const rows = Object.entries(methods).map(([name, counts]) => {
    const drift = stats.methods[name].drift, drafted = counts.num_drafts > 0;
    const tag = drafted ? el("span", { class: drift >= 1 ? "tag falling" : "tag", text: drift >= 1 ? "falling" : "steady" }) : "\u2013";
    const cells = [name, whole(counts.num_tokens), whole(counts.num_steps), percent(counts.num_drafts / counts.num_steps), whole(counts.num_draft_tokens), whole(counts.num_accepted_tokens), percent(acceptance(counts)), fixed(perStep(counts), 2), percent(counts.draft_seconds / secondsOf(counts))];
    return el("tr", { class: counts.num_tokens ? null : "idle" }, ...cells.map((text) => el("td", { text })), el("td", {}, tag));
  });
  const head = el("tr", {}, ...heads.map((text) => el("th", { text, scope: "col" })));
  byId("methods").replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}

// Choices of methods: those that have counts.
function offer(names) {
  const list = byId("method");
  for (const name of names) if (![...list.options].some((each) => each.value === name)) list.append(el("option", { value: name, text: name }));
}

function uptime(value) {
  const minutes = Math.floor(value / 60), hours = Math.floor(minutes / 60);
  if (!minutes) return `${Math.floor(value)} s`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.floor(value % 60)} s`;
}

function say(kind, words) {
  byId("state").className = `state ${kind}`;
  byId("state-words").textContent = words;
}

async function poll() {
  try {
    const stats = await get("stats");
    history.add(stats, performance.now());
    byId("model").textContent = stats.model;
    offer(Object.keys(stats.methods));
    if (lost) announce("The server answers again.");
    lost = false;
    if (!paused) {
      say("live", `live \u00b7 up for ${uptime(stats.uptime)}`);
      draw();
    }
  } catch (error) {
    if (!lost) announce("The server does not answer.");
    lost = true;
    say("lost", `${error.message} Trying again.`);
  }
  setTimeout(poll, EVERY);
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) say("", "paused");
});
byId("method").addEventListener("change", draw);
for (const each of document.querySelectorAll("input[name=range]")) each.addEventListener("change", draw);
addEventListener("resize", draw);
charts.keyOf(byId("batch-key"), BATCH);
charts.keyOf(byId("positions-key"), POSITIONS);
themeButton(byId("theme"));
poll();
