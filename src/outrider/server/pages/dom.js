// Elements, numbers as text, the theme, and what is remembered in this tab.

const SVG = new Set(["svg", "path", "rect", "g", "line", "text", "circle", "polyline", "title"]);

export const byId = (id) => document.getElementById(id);

// An element: attributes, "text" as its text, "on..." as listeners; children are nodes or text, never markup.
export function el(tag, options = {}, ...children) {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function icon(name) {
  const paths = {
    copy: "M8 8V5a1 1 0 0 1 1-1h9a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1h-3M5 8h9a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V9a1 1 0 0 1 1-1z",
    done: "M5 12.5l4.5 4.5L19 7.5",
    differs: "M12 8v5M12 16.5v.1M12 3l9.5 17h-19z",
  };
  return el("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, el("path", { d: paths[name] }));
}

const DASH = "\u2013";

export const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : DASH);
export const percent = (value, digits = 0) => (Number.isFinite(value) ? `${(100 * value).toFixed(digits)} %` : DASH);
export const whole = (value) => (Number.isFinite(value) ? Math.round(value).toLocaleString("en") : DASH);
export const rate = (value) => fixed(value, value < 10 ? 1 : 0);

export function seconds(value) {
  if (!Number.isFinite(value)) return DASH;
  if (value < 0.001) return `${(1e6 * value).toFixed(0)} \u00b5s`;
  return value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}

// What is remembered until the tab is closed; without storage nothing is.
export function recall(name) {
  try {
    return sessionStorage.getItem(`outrider.${name}`);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    if (value) sessionStorage.setItem(`outrider.${name}`, value);
    else sessionStorage.removeItem(`outrider.${name}`);
  } catch { /* no storage */ }
}

// The button that goes from light to dark and back.
export function themeButton(button, changed = () => {}) {
  const system = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const say = () => {
    button.setAttribute("aria-pressed", String(dark()));
    changed();
  };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("outrider.theme", root.dataset.theme);
    } catch { /* no storage */ }
    say();
  });
  system.addEventListener("change", say);
  say();
}

// A button that copies what `text` returns, and says so for a moment.
export function copyButton(text, what) {
  const button = el("button", { class: "quiet-button copy", type: "button", "aria-label": `copy ${what}`, title: `copy ${what}` }, icon("copy"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
    } catch { // no clipboard without a secure context: the old way
      const area = el("textarea", { class: "hidden-visually", "aria-hidden": "true" });
      area.value = text();
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.replaceChildren(icon("done"));
    button.title = "copied";
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = `copy ${what}`;
    }, 1200);
  });
  return button;
}

// Say it to those who cannot see it.
export function announce(words) {
  const box = byId("announcer");
  box.textContent = "";
  requestAnimationFrame(() => (box.textContent = words));
}
