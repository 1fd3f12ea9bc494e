// An answer as it comes in: its text, and who each token of it comes from.

import { el } from "./dom.js";
import { blocks, draw } from "./markdown.js";

const GHOSTS = 3; // rejected tokens that are shown at one place

export class Answer {
  // box: the element that shows it; view: {markdown}, shared with the page's switches.
  constructor(box, view) {
    this.box = box;
    this.view = view;
    this.text = "";
    this.tokens = [];
    this.drawn = [];
    this.settled = 0;
    this.waiting = false;
  }

  add(steps) {
    for (const step of steps) {
      step.tokens.forEach((token, index) => {
        const last = index === step.tokens.length - 1, from = this.text.length;
        this.text += token.text;
        this.tokens.push({ ...token, from, to: this.text.length, ghosts: last ? step.rejected : [], first: step.prefill });
      });
    }
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => this.waiting && this.render());
  }

  // Draw what has changed; blocks that were complete stay as they are.
  render(all = false) {
    this.waiting = false;
    const wanted = this.view.markdown ? blocks(this.text) : [{ kind: "raw", from: 0, to: this.text.length }];
    const run = (parent, from, to) => this.run(parent, from, to);
    const before = all ? [] : this.drawn;
    this.drawn = wanted.map((block, index) => {
      const name = JSON.stringify(block), old = before[index];
      if (old && old.name === name && block.to < this.settled) return old;
      const node = block.kind === "raw" ? el("p") : draw(this.text, block, run);
      if (block.kind === "raw") run(node, block.from, block.to);
      return { name, node };
    });
    this.settled = this.text.length;
    this.box.replaceChildren(...this.drawn.map((each) => each.node));
  }

  // Characters from..to, a span for each token.
  run(parent, from, to) {
    for (let at = this.tokenAt(from); at < this.tokens.length && this.tokens[at].from < to; at++) {
      const token = this.tokens[at];
      if (token.from >= from) parent.append(...ghosts(token.ghosts));
      const text = this.text.slice(Math.max(from, token.from), Math.min(to, token.to));
      if (text) parent.append(el("span", { class: `t ${token.drafted ? "drafted" : "own"}`, text, title: words(token) }));
    }
  }

  // The first token that ends behind `place`.
  tokenAt(place) {
    let low = 0, high = this.tokens.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tokens[middle].to <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

function words(token) {
  if (token.drafted) return `drafted by ${token.source}, accepted`;
  return token.first ? "chosen by the prefill" : "the target's own";
}

function ghosts(tokens) {
  if (!tokens.length) return [];
  const text = tokens.slice(0, GHOSTS).map((token) => token.text).join("").replace(/\n\s*/g, "\u21b5");
  const more = tokens.length > GHOSTS ? "\u2026" : "";
  const title = `rejected: ${tokens.length === 1 ? "1 token" : `${tokens.length} tokens`} drafted by ${tokens[0].source}`;
  return [el("del", { class: "ghost", text: text + more, title })];
}
