// Talking to the server: one question and its answer, or a stream of server-sent events read by fetch (EventSource
// cannot post). Every failure becomes a ServerError with a message for the user.

import { counted } from "./dom.js";

export class ServerError extends Error {
  constructor(message, { status = 0, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }

  // For a person: a sentence, and how long the server asks to wait.
  get words() {
    const said = /[.!?]$/.test(this.message) ? this.message : `${this.message}.`;
    return this.retryAfter ? `${said} It asks to wait ${counted(this.retryAfter, "second")}.` : said;
  }
}

// The API key, if the server needs one; kept in this tab only.
export const key = {
  get value() { return sessionStorage.getItem("key") ?? ""; },
  set value(text) { sessionStorage.setItem("key", text.trim()); },
};

async function sent(method, path, body, signal) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  try {
    return await fetch(path, { method, headers, body: JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server doesn’t answer. It may be restarting, or this machine is offline.");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  const message = body.error?.message ?? `The server answered ${response.status} ${response.statusText}`;
  return new ServerError(message, { status: response.status, retryAfter });
}

// The body of the answer; `accept` names a status besides 200 that isn't a failure.
export async function ask(method, path, { body, signal, accept } = {}) {
  const response = await sent(method, path, body, signal);
  if (!response.ok && response.status !== accept) throw await refusal(response);
  return response.json();
}

// Yields {chunk, at} for every event; `at` is when its bytes were read, by performance.now().
export async function* stream(path, body, signal) {
  const response = await sent("POST", path, body, signal);
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await read(reader);
      const at = performance.now();
      if (done) throw new ServerError("The stream broke off before its end.");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        // What begins with a colon is a comment: padding of paced streams.
        const data = event.split("\n").findLast((line) => line.startsWith("data: "))?.slice(6);
        if (data === undefined) continue;
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ServerError(chunk.error.message);
        yield { chunk, at };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The connection was lost before the answer’s end.");
  }
}
