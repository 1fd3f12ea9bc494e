"use strict";
// Drawing: elements, texts of tokens, the tree of a step.

function el(tag, options, ...children) {
  const svg = ["svg", "path", "rect", "text", "g", "line"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(options || {})) {
    if (value === null || value === undefined) continue;
    if (key === "text") node.textContent = value;
    else if (key === "class") node.setAttribute("class", value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A token on one line: white space at its ends made visible.
function shown(text) {
  if (text === "") return "\u2205";
  return text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/^ +| +$/g, (run) => "\u00b7".repeat(run.length));
}

function probability(value) {
  if (value === null || value === undefined) return "\u2013";
  if (value === 0 || value === 1) return String(value);
  if (value < 0.001) return "<.001";
  if (value > 0.999) return ">.999";
  return value.toFixed(3).slice(1);
}

function milliseconds(seconds) {
  return seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.1 ? 2 : 0)} ms` : `${seconds.toFixed(2)} s`;
}

// p as it is shown: at temperature 0 the processed law is one on the best token, so the raw one says more.
const shownP = (item, greedy) => (greedy ? item.raw : item.p);
const drafterWord = (node) => (node.law === "delta" ? "score" : "q");
const drafterValue = (node) => (node.law === "delta" ? node.score : node.q);

// Rows of the tree: leaves get a row each, a parent stands on the row of the child that goes on.
function layout(step) {
  const nodes = step.nodes.map((node, index) => ({ index, parent: node.parent, depth: node.depth, outcome: node.outcome }));
  const last = step.path.length ? step.path[step.path.length - 1] : -1;
  const walked = step.emitted[step.emitted.length - 1];
  const end = walked && walked.node === null ? walked : null;
  if (end) nodes.push({ index: nodes.length, parent: last, depth: step.path.length + 1, outcome: "end", end });
  const children = new Map([[-1, []]]);
  nodes.forEach((node) => children.set(node.index, []));
  nodes.forEach((node) => children.get(node.parent).push(node));
  const rank = (node) => (node.outcome === "accepted" || node.outcome === "end" ? 0 : node.outcome === "pruned" ? 2 : 1);
  let row = 0;
  const place = (index) => {
    const below = children.get(index).slice().sort((a, b) => rank(a) - rank(b));
    if (!below.length) return row++;
    const rows = below.map((child) => (child.row = place(child.index)));
    return rows[0];
  };
  const rootRow = place(-1);
  return { nodes, rootRow, rows: row };
}

const ROW = 56, GAP = 26, HEIGHT = 46;

function drawTree(box, trace, step, choose) {
  const { nodes, rootRow, rows } = layout(step);
  const card = (kind, label, numbers, target) => {
    const node = el("button", { class: `node ${kind}`, type: "button", "aria-label": `${label} ${numbers} ${kind}` },
      el("span", { class: "token", text: label }), el("span", { class: "numbers", text: numbers }));
    node.addEventListener("click", () => choose(target, node));
    tip(node, () => describe(trace, step, target));
    return node;
  };
  const root = card("root", shown(step.root), "root", { root: true });
  const cards = nodes.map((node) => {
    if (node.end) return card(`end-${node.end.kind}`, shown(node.end.text), `p ${probability(shownP(node.end, trace.greedy))}`, { token: node.end });
    const item = step.nodes[node.index];
    const cut = item.outcome === "accepted" && !step.emitted.some((token) => token.node === node.index);
    const numbers = `p ${probability(shownP(item, trace.greedy))}` +
      (drafterValue(item) === null ? "" : `  ${item.law === "delta" ? "s" : "q"} ${probability(drafterValue(item))}`);
    const source = trace.sources > 1 ? `  ${item.source}` : "";
    return card(item.outcome.replace(" ", "-") + (cut ? " cut" : ""), shown(item.text), numbers + source, { node: node.index });
  });
  box.replaceChildren(root, ...cards);
  const widths = [root.offsetWidth];
  nodes.forEach((node, index) => (widths[node.depth] = Math.max(widths[node.depth] || 40, cards[index].offsetWidth)));
  const lefts = [2];
  for (let depth = 1; depth < widths.length; depth++) lefts[depth] = lefts[depth - 1] + widths[depth - 1] + GAP;
  const at = (node) => ({ x: lefts[node.depth], y: node.row * ROW + 4 });
  const positions = new Map([[-1, { x: 2, y: rootRow * ROW + 4, width: root.offsetWidth }]]);
  nodes.forEach((node, index) => positions.set(node.index, { ...at(node), width: cards[index].offsetWidth }));
  const edges = nodes.map((node) => {
    const from = positions.get(node.parent), to = positions.get(node.index);
    const x = from.x + from.width, y = from.y + HEIGHT / 2, bend = to.x - GAP / 2;
    const d = `M${x} ${y}H${bend - GAP / 2}C${bend} ${y} ${bend} ${to.y + HEIGHT / 2} ${to.x} ${to.y + HEIGHT / 2}`;
    return el("path", { class: `edge ${node.outcome.replace(" ", "-")}`, d });
  });
  const width = lefts[lefts.length - 1] + widths[widths.length - 1] + 6, height = rows * ROW + 4;
  box.prepend(el("svg", { width, height, "aria-hidden": "true" }, ...edges.sort((a) => (a.getAttribute("class").includes("accepted") ? 1 : -1))));
  [[root, positions.get(-1)], ...nodes.map((node, index) => [cards[index], positions.get(node.index)])].forEach(([node, place]) => {
    node.style.left = `${place.x}px`;
    node.style.top = `${place.y}px`;
  });
  box.style.height = `${Math.min(height, 620) + 10}px`;
  box.style.overflowY = height > 620 ? "auto" : "hidden";
  box.scrollLeft = 0;
}

// What the pointer shows, and the pane below the tree: lines of text.
function describe(trace, step, target) {
  if (target.root) return `root: the last token before this step\n${JSON.stringify(step.root)}`;
  const laws = (item) => (trace.greedy
    ? `target p ${probability(item.p)} (temperature 0), ${probability(item.raw)} before the temperature`
    : `target p ${probability(item.p)}` + (Math.abs(item.p - item.raw) > 5e-4 ? `, ${probability(item.raw)} before temperature and filters` : ""));
  if (target.token) {
    const token = target.token;
    return `${JSON.stringify(token.text)}  token ${token.token_id}\n${KINDS[token.kind]}, step ${step.number}\n${laws(token)}`;
  }
  const node = step.nodes[target.node];
  const draft = node.law === "delta"
    ? `law: delta (chosen, not drawn)` + (node.score === null ? "" : `\nthe drafter's score ${probability(node.score)}`)
    : `draft law q ${probability(node.q)} (${node.law.replace("_", " ")})` + (node.score === null ? "" : `\nthe drafter's score ${probability(node.score)}`);
  const known = node.p === null ? "target p unknown: its parent was not verified" : laws(node);
  return `${JSON.stringify(node.text)}  token ${node.token_id}\n${OUTCOMES[node.outcome]}, step ${step.number}, position ${node.depth}\n${known}\n${draft}\ndrafter: ${node.source || trace.method}`;
}

const KINDS = {
  first: "first token, chosen by the prefill", drafted: "drafted and accepted", bonus: "bonus token: the walk ended at a leaf of the verified draft",
  recovered: "recovered token: the target's own, where the draft was rejected", plain: "plain: nothing was drafted",
};
const OUTCOMES = {
  accepted: "accepted", rejected: "rejected", "not reached": "not reached: verified, below a rejected node",
  pruned: "pruned by the planner: proposed, not verified",
};

function tip(node, lines) {
  const box = document.getElementById("tip");
  const show = () => {
    box.textContent = lines();
    box.hidden = false;
    const spot = node.getBoundingClientRect(), size = box.getBoundingClientRect();
    const below = spot.bottom + 8 + size.height < innerHeight;
    box.style.left = `${Math.max(6, Math.min(spot.left, innerWidth - size.width - 6))}px`;
    box.style.top = `${below ? spot.bottom + 8 : Math.max(6, spot.top - size.height - 8)}px`;
  };
  const hide = () => (box.hidden = true);
  node.addEventListener("pointerenter", show);
  node.addEventListener("focus", show);
  node.addEventListener("pointerleave", hide);
  node.addEventListener("blur", hide);
}
