// The API: all routes and fields, drawn from /openapi.json.

import { get } from "./client.js";
import { byId, el, themeButton } from "./dom.js";

const EXAMPLES = {
  "/v1/chat/completions": { messages: [{ role: "user", content: "Why is the sky blue?" }], max_tokens: 64 },
  "/v1/completions": { prompt: "The sky is", max_tokens: 16 },
  "/tokenize": { prompt: "The sky is" },
  "/detokenize": { tokens: [1, 2, 3] },
};

let schemas = {};

const named = (schema) => (schema.$ref ? schema.$ref.split("/").pop() : "");
const resolved = (schema) => (schema.$ref ? schemas[named(schema)] || {} : schema);

// The kind of a value in words; names of objects are shown below the table.
function kind(schema) {
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return [...new Set(choices.map(kind))].join(" or ");
  if (schema.$ref) return resolved(schema).enum ? kind(resolved(schema)) : named(schema);
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${schema.items && Object.keys(schema.items).length ? kind(schema.items) : "anything"}`;
  return schema.type || "anything";
}

function bounds(schema) {
  const all = [schema, ...(schema.anyOf || [])], found = (name) => all.map((each) => each[name]).find((value) => value !== undefined);
  const words = [["minimum", "from"], ["exclusiveMinimum", "over"], ["maximum", "to"], ["exclusiveMaximum", "below"]];
  return words.filter(([name]) => found(name) !== undefined).map(([name, word]) => ` ${word} ${found(name)}`).join("");
}

// Objects that a schema holds, by name, those within them too.
function within(schema, seen = new Map()) {
  for (const part of [schema.items, ...(schema.anyOf || []), ...(schema.oneOf || []), ...Object.values(schema.properties || {})]) {
    if (part) within(part, seen);
  }
  if (schema.$ref && !seen.has(named(schema))) {
    seen.set(named(schema), resolved(schema));
    within(resolved(schema), seen);
  }
  return seen;
}

function fields(schema) {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, own]) => el("tr", {},
    el("td", {}, el("code", { text: name })),
    el("td", { text: kind(own) + bounds(own) }),
    el("td", { text: required.has(name) ? "required" : own.default === undefined || own.default === null ? "" : JSON.stringify(own.default) }),
    el("td", { text: own.description || "" })));
  const head = ["field", "kind", "default", "what"].map((text) => el("th", { text, scope: "col" }));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)));
}

function body(path, operation) {
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  if (!schema) return [];
  const inner = [...within(schema)].filter(([name, own]) => name !== named(schema) && own.properties);
  const sent = EXAMPLES[path];
  const call = `curl ${location.origin}${path} -H 'Content-Type: application/json' -d '${JSON.stringify(sent)}'`;
  return [
    ...(sent ? [el("pre", { text: call })] : []),
    el("h2", { text: "Body" }), fields(resolved(schema)),
    ...inner.flatMap(([name, own]) => [el("h2", { text: name }), fields(own)]),
  ];
}

function route(path, verb, operation) {
  const parameters = (operation.parameters || []).map((each) => `${each.name} (${each.in})`).join(", ");
  const statuses = Object.keys(operation.responses || {}).join(", ");
  return el("details", { class: "route" },
    el("summary", {}, el("span", { class: `verb ${verb}`, text: verb.toUpperCase() }), el("span", { class: "path", text: path })),
    el("div", { class: "inside" },
      el("p", { text: operation.description || operation.summary || "" }),
      ...(parameters ? [el("p", { text: `Parameters: ${parameters}` })] : []),
      ...body(path, operation),
      el("h2", { text: "Answers" }), el("p", { text: `Status ${statuses}` })));
}

async function start() {
  themeButton(byId("theme"));
  try {
    const found = await get("openapi.json");
    schemas = found.components?.schemas || {};
    byId("version").textContent = `outrider ${found.info.version}`;
    const routes = Object.entries(found.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([verb, own]) => route(path, verb, own)));
    byId("routes").append(...routes);
    byId("words").replaceChildren(`${routes.length} routes. As data: `, el("a", { href: "openapi.json", text: "openapi.json" }));
  } catch (error) {
    byId("words").textContent = error.message;
  }
}

start();
