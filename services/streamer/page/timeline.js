// One request as a timeline of its phases, from metrics.timeline.

import { canvas, line, rect, text, titled } from "./charts.js";
import { counted, duration } from "./dom.js";

const ROWS = [
  ["queue", "queue"],
  ["tokenize", "tokenize"],
  ["prefill", "prefill"],
  ["propose", "propose"],
  ["verify", "verify"],
  ["stream", "stream"],
];
const NAMES = 70, SUMS = 74, PITCH = 27, BAR = 15, FOOT = 26;

export function timeline(width, spans) {
  if (!spans?.length) return null;
  const end = Math.max(...spans.map((span) => span.to_ms)) || 1;
  const room = width - NAMES - SUMS, height = ROWS.length * PITCH + FOOT;
  const x = (ms) => NAMES + room * Math.max(0, ms) / end;
  const node = canvas(width, height);
  for (const ms of ticks(end, room / 90)) {
    node.append(line(x(ms), 2, x(ms), height - FOOT + 4, { class: "grid" }),
      text(x(ms), height - 8, ms ? duration(ms) : "0", { class: "tick", "text-anchor": "middle" }));
  }
  const sums = {};
  ROWS.forEach(([what, name], row) => {
    const y = row * PITCH + 6, mine = spans.filter((span) => span.what === what);
    node.append(text(NAMES - 10, y + 12, name, { class: "tick name", "text-anchor": "end" }));
    for (const span of mine) {
      const from = x(span.from_ms), wide = Math.max(1, x(span.to_ms) - from - (mine.length > room / 4 ? 0 : 1));
      node.append(titled(rect(from, y, wide, BAR, { class: `span ${what}` }), wordsOf(span, name)));
    }
    sums[what] = mine.reduce((sum, span) => sum + span.to_ms - span.from_ms, 0);
    node.append(text(width, y + 12, mine.length ? duration(sums[what]) : "–", { class: "tick", "text-anchor": "end" }));
  });
  const told = ROWS.filter(([what]) => sums[what]).map(([what, name]) => `${name} ${duration(sums[what])}`);
  return { node, says: `Timeline of ${duration(end)}: ${told.join(", ")}.` };
}

function wordsOf(span, name) {
  const step = span.step ? ` of step ${span.step}` : "";
  const tokens = span.tokens === undefined ? "" : `, ${counted(span.tokens, "token")}`;
  return `${name}${step}: ${duration(span.to_ms - span.from_ms)} from ${duration(span.from_ms)} on${tokens}`;
}

// Round numbers from 0 to `end`, about `wanted` of them.
function ticks(end, wanted) {
  const rough = end / Math.max(2, wanted);
  const scale = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * scale).find((each) => each >= rough);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, place) => place * step);
}
