// The playground: connects, and lets chat, race and settings work together.

import { Chat } from "./chat.js";
import { get, key } from "./client.js";
import { byId, el, themeButton } from "./dom.js";
import { MeterView } from "./meter.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";

const EXAMPLES = [
  "Why is the sky blue?",
  "Write a Python function that reverses a linked list, with a docstring.",
  "List the planets of the solar system with one sentence about each.",
  "Repeat this sentence five times: The quick brown fox jumps over the lazy dog.",
];

const settings = new Settings(show);
const meterView = new MeterView(byId("meter"));
const chat = new Chat(settings, (meter) => meterView.show(meter)), race = new Race(settings);
let running = null; // the AbortController of what runs
let mode = "chat";

function show() {
  const { colours, ghosts } = settings.view;
  document.body.classList.toggle("without-colours", !colours);
  document.body.classList.toggle("without-ghosts", !ghosts);
  chat.redraw();
  race.redraw();
}

function trouble(message) {
  byId("trouble").textContent = message;
  byId("trouble").hidden = !message;
}

// Ask what is served. A server with keys refuses this, and then the field for one shows.
async function connect() {
  try {
    const [model] = (await get("v1/models")).data;
    byId("model").textContent = model.id;
    byId("model").title = `${model.id}, context of ${model.max_model_len} tokens`;
    byId("prompt").placeholder = model.chat ? "Ask something\u2026" : "Begin a text, and the model goes on\u2026";
    settings.open(model);
    byId("key-field").hidden = !key.get();
    byId("key").setAttribute("aria-invalid", "false");
    trouble("");
    ready(true);
    byId("prompt").focus();
  } catch (error) {
    byId("model").textContent = "not connected";
    ready(false);
    if (error.status === 401) return askForKey();
    trouble(error.message);
  }
}

function askForKey() {
  byId("key-field").hidden = false;
  openPanel(true);
  if (key.get()) {
    byId("key").setAttribute("aria-invalid", "true");
    trouble("The server does not take this API key.");
  } else trouble("This server asks for an API key: enter it in the settings.");
  byId("key").focus();
}

function ready(is) {
  byId("send").disabled = !is;
  byId("examples").toggleAttribute("inert", !is);
}

async function send() {
  const text = byId("prompt").value.trim();
  if (!text || running || byId("send").disabled) return;
  running = new AbortController();
  work(true);
  trouble("");
  if (mode === "chat") byId("prompt").value = "";
  try {
    await (mode === "chat" ? chat : race).send(text, running.signal);
  } catch (error) {
    byId("prompt").value = text;
    if (error.status === 401) askForKey();
    else trouble(error.message);
  } finally {
    running = null;
    work(false);
    fit();
  }
}

function work(on) {
  byId("send").hidden = on;
  byId("stop").hidden = !on;
  byId("clear").disabled = on;
  for (const tab of document.querySelectorAll("[role=tab]")) tab.disabled = on;
  for (const field of document.querySelectorAll("[name=order]")) field.disabled = on;
}

function choose(name) {
  mode = name;
  for (const each of ["chat", "race"]) {
    const is = each === name, tab = byId(`tab-${each}`);
    byId(each).hidden = !is;
    tab.setAttribute("aria-selected", String(is));
    tab.tabIndex = is ? 0 : -1;
  }
  byId("send").textContent = name === "chat" ? "Send" : "Race";
  byId("clear").hidden = name !== "chat";
  byId("meter").hidden = name !== "chat" || !chat.answers.length; // each lane has its own
  history.replaceState(null, "", name === "race" ? "#race" : location.pathname + location.search);
}

function openPanel(open) {
  byId("settings").hidden = !open;
  byId("panel").setAttribute("aria-expanded", String(open));
}

function fit() {
  const field = byId("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(200, field.scrollHeight)}px`;
}

function onKeys(event) {
  if (event.key === "Escape" && running) running.abort();
  if (event.target.id === "prompt" && event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
  if (event.target.getAttribute("role") === "tab" && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    choose(mode === "chat" ? "race" : "chat");
    byId(`tab-${mode}`).focus();
  }
}

function useKey() {
  key.set(byId("key").value.trim());
  connect();
}

for (const text of EXAMPLES) {
  const use = () => {
    byId("prompt").value = text;
    send();
  };
  byId("examples").append(el("button", { type: "button", text, onclick: use }));
}
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("fields").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!byId("key-field").hidden) useKey();
});
byId("stop").addEventListener("click", () => running && running.abort());
byId("clear").addEventListener("click", () => {
  chat.clear();
  byId("prompt").focus();
});
byId("key").value = key.get();
byId("panel").addEventListener("click", () => openPanel(byId("settings").hidden));
for (const name of ["chat", "race"]) byId(`tab-${name}`).addEventListener("click", () => choose(name));
byId("prompt").addEventListener("input", fit);
byId("chat").addEventListener("scroll", (event) => {
  const { scrollHeight, scrollTop, clientHeight } = event.target;
  byId("log").dataset.away = String(scrollHeight - scrollTop - clientHeight > 60);
});
addEventListener("keydown", onKeys);
themeButton(byId("theme"));
openPanel(matchMedia("(min-width: 900px)").matches);
choose(location.hash === "#race" ? "race" : "chat");
connect();
