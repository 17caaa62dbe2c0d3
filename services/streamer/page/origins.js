// The sources of tokens, with their names; page.css has a colour and a line style for each.

import { el, whole } from "./dom.js";

export const ORIGINS = [
  // made: sources
  { id: "other", name: "another source", says: "one that this page has no colour for" },
  { id: "bonus", name: "bonus", says: "the model’s own token, in a step that checked a draft" },
  { id: "plain", name: "plain", says: "the model alone: a step without a draft" },
];
const KNOWN = Object.fromEntries(ORIGINS.map((origin) => [origin.id, origin]));

// A draft that was merged has the source of a head first, then those of text: eagle3+suffix.
export function originOf(source) {
  const id = source.split(/[:+]/)[0];
  return id in KNOWN ? id : "other";
}

// A corpus has a name of its own, and so has a source this page doesn't know.
export const nameOf = (source) => source.split("+").map((each) => KNOWN[each]?.name ?? each.replace(":", " ")).join(" + ");

export const originOfToken = ({ step, own }) => (own ? (step.drafted ? "bonus" : "plain") : originOf(step.source));

// The legend, with how many tokens each gave; before there are any, all that every server has.
export function legend(tokens) {
  const counts = {};
  for (const token of tokens) counts[originOfToken(token)] = (counts[originOfToken(token)] ?? 0) + 1;
  const shown = ORIGINS.filter((origin) => (tokens.length ? counts[origin.id] : origin.id !== "other" && !origin.head));
  return shown.map((origin) =>
    el("li", { title: origin.says },
      el("span", { class: `origin ${origin.id}` }, origin.name),
      tokens.length ? el("span", { class: "count" }, whole(counts[origin.id])) : null));
}
