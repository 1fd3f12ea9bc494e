// Charts as SVG: lines over time, and groups of bars. Colours are custom properties; shapes carry the meaning as well.

import { el } from "./dom.js";

const LEFT = 34, BOTTOM = 20, TOP = 6;

// A round number at or above `value`, for the end of an axis.
export function ceiling(value, least) {
  const wanted = Math.max(value, least), unit = 10 ** Math.floor(Math.log10(wanted));
  return unit * [1, 2, 4, 6, 8, 10].find((step) => step * unit >= wanted - 1e-9);
}

function frame(box, most, label) {
  const wide = box.clientWidth, high = box.clientHeight;
  const svg = el("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img" });
  const y = (value) => TOP + (high - BOTTOM - TOP) * (1 - value / most);
  for (const part of [0, 0.5, 1]) {
    svg.append(el("line", { class: "grid-line", x1: LEFT, x2: wide, y1: y(most * part), y2: y(most * part) }));
    svg.append(el("text", { x: LEFT - 7, y: y(most * part) + 4, "text-anchor": "end", text: label(most * part) }));
  }
  return { svg, y, wide, high };
}

// Lines over the last `span` seconds. points: {now, values}; series: {colour, dashed}.
export function lines(box, points, span, series, words, least = 1) {
  const most = ceiling(Math.max(0, ...points.flatMap((point) => point.values)), least);
  const { svg, y, wide, high } = frame(box, most, (value) => String(Number(value.toPrecision(3))));
  const end = points[points.length - 1].now, x = (now) => wide - ((end - now) / 1000 / span) * (wide - LEFT);
  series.forEach(({ colour, dashed }, index) => {
    const path = points.map((point) => `${x(point.now).toFixed(1)} ${y(point.values[index]).toFixed(1)}`).join("L");
    const area = el("path", { class: "area", d: `M${x(points[0].now)} ${y(0)}L${path}L${x(end)} ${y(0)}Z` });
    area.style.fill = `var(${colour})`;
    const line = el("path", { class: "series", d: `M${path}`, "stroke-dasharray": dashed ? "5 4" : null });
    line.style.stroke = `var(${colour})`;
    svg.append(area, line);
  });
  const ago = (seconds) => (seconds < 120 ? `${seconds} s ago` : `${seconds / 60} min ago`);
  for (const [at, text, anchor] of [[LEFT, ago(span), "start"], [(LEFT + wide) / 2, ago(span / 2), "middle"], [wide, "now", "end"]]) {
    svg.append(el("text", { x: at, y: high - 3, "text-anchor": anchor, text }));
  }
  svg.setAttribute("aria-label", words);
  box.replaceChildren(svg);
}

// Groups of bars from 0 to 1. groups: [values by series]; a value that is no number has no bar.
export function bars(box, groups, series, words) {
  const { svg, y, wide, high } = frame(box, 1, (value) => `${100 * value}`);
  const slot = Math.min(64, (wide - LEFT) / groups.length), width = Math.min(18, (slot - 8) / series.length);
  groups.forEach((values, at) => {
    const middle = LEFT + slot * (at + 0.5), start = middle - (width * series.length) / 2;
    values.forEach((value, index) => {
      if (!Number.isFinite(value)) return;
      const bar = el("rect", { x: start + index * width, y: y(value), width: width - 2, height: Math.max(1, y(0) - y(value)), rx: 2 });
      bar.style.fill = `var(${series[index].colour})`;
      bar.append(el("title", { text: `position ${at + 1}, ${series[index].name}: ${(100 * value).toFixed(1)} %` }));
      svg.append(bar);
    });
    svg.append(el("text", { x: middle, y: high - 3, "text-anchor": "middle", text: at + 1 }));
  });
  svg.setAttribute("aria-label", words);
  box.replaceChildren(svg);
}

export function none(box, words) {
  box.replaceChildren(el("p", { class: "none", text: words }));
}

export function keyOf(list, series) {
  list.replaceChildren(...series.map(({ name, colour }) => {
    const dot = el("span", { class: "dot" });
    dot.style.background = `var(${colour})`;
    return el("li", {}, dot, name);
  }));
}
