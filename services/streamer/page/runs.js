// An answer's text on the page: every run of tokens underlined by its origin, every verify step an element of its own
// that can be pointed at or reached with the arrow keys; it is then bracketed, and a note shows its draft.

import { counted, el } from "./dom.js";
import { nameOf, originOf, originOfToken } from "./origins.js";

export class Runs {
  #box;
  #answer = null;
  #drawn = 0;     // tokens that are on the page
  #steps = [];    // {node, step}
  #tail = document.createTextNode("");
  #run = null;    // the span being filled, its origin and its step
  #current = 0;   // the step that Tab leads to

  constructor(box) {
    this.#box = box;
    box.addEventListener("pointerover", (event) => this.#pointed(event.target));
    box.addEventListener("pointerleave", () => note.hide());
    box.addEventListener("focusin", (event) => this.#pointed(event.target));
    box.addEventListener("focusout", () => note.hide());
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  show(answer) {
    this.#answer = answer;
    this.#drawn = 0;
    this.#steps = [];
    this.#run = null;
    this.#current = 0;
    this.#tail.data = "";
    this.#box.replaceChildren(this.#tail);
  }

  // Append what is new. Repeat-safe.
  draw() {
    const { tokens, chars } = this.#answer;
    for (; this.#drawn < tokens.length; this.#drawn++) {
      this.#append(tokens[this.#drawn], this.#answer.textOf(this.#drawn));
      this.#end = tokens[this.#drawn + 1]?.offset ?? chars.length;
    }
    // Text whose token hasn't arrived yet.
    this.#tail.data = chars.slice(this.#drawn ? this.#end : 0).join("");
  }

  #end = 0;

  #append(token, text) {
    const origin = originOfToken(token);
    if (this.#run?.step !== token.step) this.#begin(token.step);
    const { node } = this.#steps.at(-1);
    if (token.own && token.step.rejected.length) {
      node.append(el("del", { class: "ghost", "aria-hidden": "true" },
        token.step.rejected.join("").replaceAll("\n", "⏎")));
    }
    if (this.#run?.origin !== origin || this.#run.step !== token.step) {
      this.#run = { origin, step: token.step, node: el("span", { class: `origin ${origin}` }) };
      node.append(this.#run.node);
    }
    this.#run.node.append(text);
  }

  #begin(step) {
    const first = this.#steps.length === 0;
    const node = el("span", { class: "step", tabindex: first ? 0 : -1, "aria-describedby": "note" });
    this.#steps.push({ node, step });
    this.#tail.before(node);
  }

  #pointed(target) {
    const node = target.closest?.(".step");
    const found = this.#steps.findIndex((each) => each.node === node);
    if (found < 0) return note.hide();
    if (node === document.activeElement) this.#mayBeReached(found);
    note.show(node, this.#steps[found].step, this.#answer);
  }

  #mayBeReached(place) {
    this.#steps[this.#current].node.tabIndex = -1;
    this.#steps[place].node.tabIndex = 0;
    this.#current = place;
  }

  #key(event) {
    const last = this.#steps.length - 1;
    const to = { ArrowRight: this.#current + 1, ArrowLeft: this.#current - 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") note.hide();
    if (to === undefined || to < 0 || to > last) return;
    event.preventDefault();
    this.#steps[to].node.focus();
  }
}

// The note beside a step: one on the page.
const note = {
  node: null,

  show(near, step, answer) {
    this.node ??= document.getElementById("note");
    this.node.replaceChildren(...wordsOf(step, answer));
    this.node.hidden = false;
    this.node.style.left = "0";  // where there is room for all its words: it is measured below
    const lines = near.getClientRects();
    const line = lines[lines.length - 1];
    const widest = document.documentElement.clientWidth - this.node.offsetWidth - 12;
    this.node.style.left = `${Math.max(12, Math.min(line.left, widest)) + scrollX}px`;
    const below = line.bottom + 10 + this.node.offsetHeight < innerHeight;
    const top = below ? line.bottom + 8 : lines[0].top - this.node.offsetHeight - 8;
    this.node.style.top = `${top + scrollY}px`;
  },

  hide() {
    if (this.node) this.node.hidden = true;
  },
};

function wordsOf(step, answer) {
  const from = answer.tokens.findIndex((token) => token.step === step);
  const mine = answer.tokens.slice(from, from + step.tokens);
  const texts = mine.map((token, place) => ({ ...token, text: seen(answer.textOf(from + place)) }));
  const head = el("p", { class: "note-head" }, el("b", {}, `Step ${step.number}`));
  if (!step.drafted) {
    return [head, el("p", {}, "No draft: the model gave one token by itself.")];
  }
  head.append(" drafted by ", el("span", { class: `origin ${originOf(step.source)}` }, nameOf(step.source)));
  if (step.matched) head.append(`, which knew the last ${counted(step.matched, "token")}`);
  const draft = el("p", { class: "note-draft" },
    ...texts.filter((token) => !token.own).map(({ text }) => el("span", { class: "stood" }, text)),
    ...step.rejected.filter(Boolean).map((text) => el("del", { class: "fell" }, seen(text))));
  const own = texts.find((token) => token.own);
  const words = `${step.accepted} of ${counted(step.drafted, "draft token")} accepted`;
  return [head, draft, own
    ? el("p", {}, `${words}; then the model’s own token: `, el("span", { class: "stood own" }, own.text))
    : el("p", {}, `${words}.`)];
}

// What has no ink is shown by a sign.
const seen = (text) => (/^ +$/.test(text) ? text.replaceAll(" ", "␣")
  : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "\u00a0"));
