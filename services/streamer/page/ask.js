// Form values as a body of the API, and one answer from its first chunk to its end.

import { stream } from "./stream.js";

// `wishes`: model, chat, maxTokens, temperature, method, and, where wished, draftLength, prediction, namespace, learn,
// seed, salt.
export function bodyFor(wishes, messages, text) {
  const speculation = {};
  if (wishes.method === "off") speculation.off = true;
  else if (wishes.method) speculation.method = wishes.method;
  if (wishes.draftLength && !speculation.off) speculation.num_speculative_tokens = wishes.draftLength;
  if (wishes.namespace) speculation.namespace = wishes.namespace;
  if (wishes.learn === false) speculation.learn = false;
  const body = {
    model: wishes.model,
    max_tokens: wishes.maxTokens,
    temperature: wishes.temperature,
    stream: true,
    stream_options: { include_usage: true },
    return_drafts: true,
    return_timeline: true,
    speculation,
  };
  if (wishes.seed !== undefined) body.seed = wishes.seed;
  if (wishes.salt) body.cache_salt = wishes.salt;
  if (wishes.prediction) body.prediction = { type: "content", content: wishes.prediction };
  return wishes.chat ? { ...body, messages } : { ...body, prompt: text };
}

// Fills `answer`; onChunk(answer, at, chunk) after each. Raises ServerError, or AbortError when it was stopped.
export async function fill(answer, chat, body, onChunk, signal) {
  const path = chat ? "/v1/chat/completions" : "/v1/completions";
  answer.asked = performance.now();
  for await (const { chunk, at } of stream(path, body, signal)) {
    answer.take(chunk, at);
    onChunk(answer, at, chunk);
  }
}
