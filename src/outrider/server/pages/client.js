// The server's API: JSON, streams of events, and the key, which stays in this tab.

import { recall, remember } from "./dom.js";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = { get: () => recall("key") || "", set: (value) => remember("key", value) };

function headers() {
  const own = { "Content-Type": "application/json" };
  return key.get() ? { ...own, Authorization: `Bearer ${key.get()}` } : own;
}

async function failure(answer) {
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* not ours: the status has to do */ }
  return new ApiError(answer.status, message);
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers() });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server does not answer: is it still running?");
  }
  if (!answer.ok) throw await failure(answer);
  return answer;
}

export async function get(path) {
  return (await ask(path)).json();
}

// The chunks of a streamed answer. Raises ApiError, also for an error within the stream.
export async function* stream(path, body, signal) {
  const answer = await ask(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
        const data = JSON.parse(event.slice(6));
        if (data.error) throw new ApiError(data.error.code, data.error.message);
        yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
