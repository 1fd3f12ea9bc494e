// A small part of Markdown, as elements. Nothing is taken for HTML: every text is handed to `run(parent, from, to)`,
// which appends the characters from..to of the source as text nodes.

import { copyButton, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+\u2022]|\d{1,9}[.)])\s+/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = /(`+)(?!`)([\s\S]*?[^`])\1(?!`)|(\*\*|__)(?=\S)([\s\S]*?\S)\3|(?<![\w*])([*_])(?=[^\s*_])([\s\S]*?[^\s*_])\5(?![\w*])|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

// The blocks of a text: kind, the range that they cover, and what their kind needs.
export function blocks(text) {
  const lines = split(text), out = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.text.trim()) at += 1;
    else {
      const [block, next] = fence(lines, at) || single(line, at) || table(lines, at) || list(lines, at) || quote(lines, at) || paragraph(lines, at);
      out.push({ ...block, from: line.from, to: lines[next - 1].to });
      at = next;
    }
  }
  return out;
}

function split(text) {
  const out = [];
  let from = 0;
  for (const line of text.split("\n")) {
    out.push({ text: line, from, to: from + line.length });
    from += line.length + 1;
  }
  return out;
}

function fence(lines, at) {
  const opened = FENCE.exec(lines[at].text);
  if (!opened) return null;
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(opened[1]) && !line.trim().replaceAll(opened[1][0], "");
  while (end < lines.length && !closes(lines[end].text)) end += 1;
  const inside = lines.slice(at + 1, end);
  const range = inside.length ? [inside[0].from, inside[inside.length - 1].to] : [lines[at].to, lines[at].to];
  return [{ kind: "code", language: opened[2], range }, Math.min(end + 1, lines.length)];
}

function single(line, at) {
  if (RULE.test(line.text)) return [{ kind: "rule" }, at + 1];
  const heading = HEADING.exec(line.text);
  return heading && [{ kind: "heading", level: heading[1].length, range: [line.from + heading[0].length, line.to] }, at + 1];
}

function table(lines, at) {
  if (!lines[at].text.includes("|") || at + 1 >= lines.length || !DIVIDER.test(lines[at + 1].text) || !lines[at + 1].text.includes("-")) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].text.includes("|")) end += 1;
  return [{ kind: "table", rows: [lines[at], ...lines.slice(at + 2, end)].map(cells) }, end];
}

function cells(line) {
  const start = /^\s*\|?/.exec(line.text)[0].length, last = line.text.trimEnd().replace(/\|$/, "").length;
  const out = [];
  let from = start;
  for (let at = start; at <= last; at++) {
    if (at < last && line.text[at] !== "|") continue;
    const inner = line.text.slice(from, at), left = inner.length - inner.trimStart().length;
    out.push([line.from + from + left, line.from + from + Math.max(left, inner.trimEnd().length)]);
    from = at + 1;
  }
  return out;
}

function list(lines, at) {
  if (!ITEM.test(lines[at].text)) return null;
  const items = [];
  let end = at;
  for (; end < lines.length; end++) {
    const { text, from, to } = lines[end], item = ITEM.exec(text);
    if (item) items.push({ depth: Math.min(4, Math.floor(item[1].length / 2)), marker: /\d/.test(item[2]) ? item[2] : "\u2022", range: [from + item[0].length, to] });
    else if (text.trim() && /^\s/.test(text)) items[items.length - 1].range[1] = to;
    else if (text.trim() || !ITEM.test((lines[end + 1] || { text: "" }).text)) break;
  }
  return [{ kind: "list", items }, end];
}

function quote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end].text)) end += 1;
  if (end === at) return null;
  return [{ kind: "quote", ranges: lines.slice(at, end).map((line) => [line.from + QUOTE.exec(line.text)[0].length, line.to]) }, end];
}

function paragraph(lines, at) {
  let end = at + 1;
  const starts = (line) => !line.trim() || [FENCE, HEADING, RULE, ITEM, QUOTE].some((rule) => rule.test(line));
  while (end < lines.length && !starts(lines[end].text)) end += 1;
  return [{ kind: "paragraph", range: [lines[at].from, lines[end - 1].to] }, end];
}

// The element of a block.
export function draw(text, block, run) {
  const within = (parent, [from, to]) => inline(parent, text, from, to, run);
  if (block.kind === "rule") return el("hr");
  if (block.kind === "heading") return within(el(`h${Math.min(6, block.level + 2)}`), block.range);
  if (block.kind === "code") return code(text, block, run);
  if (block.kind === "table") {
    const rows = block.rows.map((row, index) => el("tr", {}, ...row.map((range) => within(el(index ? "td" : "th"), range))));
    return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, rows[0]), el("tbody", {}, ...rows.slice(1))));
  }
  if (block.kind === "list") {
    const item = (each) => el("li", { class: `depth-${each.depth}` }, el("span", { class: "marker", text: each.marker }), within(el("span"), each.range));
    return el("ul", { class: "list" }, ...block.items.map(item));
  }
  if (block.kind === "quote") return el("blockquote", {}, ...block.ranges.map((range) => within(el("p"), range)));
  return within(el("p"), block.range);
}

function code(text, block, run) {
  const body = el("code");
  run(body, ...block.range);
  const bar = el("div", { class: "code-bar" }, el("span", { text: block.language || "code" }), copyButton(() => text.slice(...block.range), "code"));
  return el("div", { class: "code" }, bar, el("pre", { tabindex: "0" }, body));
}

function inline(parent, text, from, to, run) {
  const part = text.slice(0, to), rule = new RegExp(INLINE.source, "g");
  let at = rule.lastIndex = from;
  for (let found = rule.exec(part); found; found = rule.exec(part)) {
    if (found.index > at) run(parent, at, found.index);
    at = rule.lastIndex;
    parent.append(span(text, found, run));
  }
  if (at < to) run(parent, at, to);
  return parent;
}

function span(text, found, run) {
  const [all, ticks, , strong, bold, light, italic, label, address] = found, start = found.index;
  if (ticks) {
    const node = el("code");
    run(node, start + ticks.length, start + all.length - ticks.length);
    return node;
  }
  if (strong) return inline(el("strong"), text, start + 2, start + 2 + bold.length, run);
  if (light) return inline(el("em"), text, start + 1, start + 1 + italic.length, run);
  return inline(el("a", { href: address, rel: "noopener noreferrer nofollow", target: "_blank" }), text, start + 1, start + 1 + label.length, run);
}
