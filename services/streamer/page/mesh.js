// The mesh as it is now: every process with its state, its last heartbeat and its queue, and the connections.
// Asked once a second while it is seen. In demo mode a button kills the proposer, while an answer is generated.

import { Answer } from "./answer.js";
import { bodyFor, fill } from "./ask.js";
import { byId, counted, duration, el, percent, svg, whole } from "./dom.js";
import { Painter } from "./paint.js";
import { PROMPTS } from "./prompts.js";
import { Runs } from "./runs.js";
import { ask } from "./stream.js";

const EVERY = 1000;  // ms
const PLACES = { streamer: 1, tokenizer: 2, worker: 2, proposer: 3 };  // columns of the map
const SAYS = {
  streamer: "HTTP in, text out",
  tokenizer: "text to tokens",
  worker: "the model: checks drafts",
  proposer: "guesses what comes next",
};
// What is shown of each role besides its queue.
const FIGURES = {
  streamer: [["connections", "connections", whole]],
  tokenizer: [["tokens_per_s", "tokens/s", whole]],
  worker: [["tokens_per_s", "tokens/s", whole], ["accepted_per_step", "accepted a step", (value) => value.toFixed(2)],
    ["kv_used", "pages in use", percent]],
  proposer: [["text_tokens", "tokens followed", whole], ["store_tokens", "tokens learned", whole]],
};
const LONGEST = 1500;  // tokens of the answer to be looked at

export class MeshMap {
  #seen = null;
  #timer = 0;
  #cards = new Map();   // instance -> node

  constructor(model) {
    this.watched = new Watched(model, (words) => this.#say(words));
    byId("kill").addEventListener("click", () => this.#kill());
    new ResizeObserver(() => this.#lines()).observe(byId("map"));
  }

  shown(shown) {
    clearInterval(this.#timer);
    if (!shown) return;
    this.#look();
    this.#timer = setInterval(() => document.hidden || this.#look(), EVERY);
  }

  async #look() {
    try {
      this.#seen = await ask("GET", "/v1/mesh", { signal: AbortSignal.timeout(5 * EVERY) });
      byId("mesh-trouble").hidden = true;
      this.#draw();
    } catch (error) {
      // The page itself says that the server doesn't answer.
      byId("mesh-trouble").hidden = error.status === 0;
      byId("mesh-trouble").textContent = error.status === 401
        ? "A key is needed: enter it in the playground’s form." : `Not seen now: ${error.message}`;
      byId("map").classList.add("stale");
    }
  }

  #draw() {
    const { members, demo } = this.#seen;
    byId("map").classList.remove("stale");
    byId("kill").hidden = !demo;
    byId("with-demo").hidden = !demo;
    byId("no-demo").hidden = demo;
    const there = new Set(members.map((member) => member.instance));
    for (const [instance, card] of this.#cards) if (!there.has(instance)) { card.remove(); this.#cards.delete(instance); }
    for (const member of members) this.#card(member);
    this.#lines();
  }

  #card(member) {
    let card = this.#cards.get(member.instance);
    if (!card) {
      card = el("li", { class: "member" });
      this.#cards.set(member.instance, card);
      byId(`column-${PLACES[member.role] ?? 3}`).append(card);
    }
    const heard = this.#seen.now - member.heard_ago_s;
    const beat = heard > Number(card.dataset.heard ?? 0) + 0.05;
    card.dataset.heard = heard;
    card.dataset.state = member.state;
    card.dataset.role = member.role;
    card.replaceChildren(
      el("h3", {}, member.phase ? `${member.role}, ${member.phase}` : member.role, el("span", { class: "instance" }, member.instance)),
      el("p", { class: "says" }, SAYS[member.role] ?? ""),
      el("p", { class: "state" }, el("span", { class: "dot" }), member.state,
        el("span", { class: "since" }, ` for ${ago(member.since_s)}`)),
      el("dl", {},
        el("dt", {}, "heard"),
        el("dd", {}, el("span", { class: beat ? "beat now" : "beat" }), `${ago(member.heard_ago_s)} ago`),
        el("dt", {}, "queue"), el("dd", {}, queue(member.queue)),
        ...figuresOf(member)));
  }

  // Lines from card to card, under the cards; each with its round trip.
  #lines() {
    const map = byId("map"), drawing = byId("lines");
    if (!this.#seen || !map.clientWidth) return;
    const frame = map.getBoundingClientRect();
    const narrow = getComputedStyle(map).gridTemplateColumns.split(" ").length < 3;
    drawing.setAttribute("width", map.clientWidth);
    drawing.setAttribute("height", map.clientHeight);
    drawing.replaceChildren();
    byId("links").replaceChildren();
    for (const link of this.#seen.links) {
      const trip = link.round_trip_ms ? duration(link.round_trip_ms) : "";
      byId("links").append(el("li", {}, `${link.from} to ${link.to}: ${link.open ? trip || "open" : "closed"}`));
      const from = this.#cards.get(link.from), to = this.#cards.get(link.to);
      if (narrow || !from || !to) continue;
      const [a, b] = ends(from.getBoundingClientRect(), to.getBoundingClientRect(), frame);
      const across = this.#between(a, b, frame);
      drawing.append(svg("path", { d: across ? arch(a, b, across) : `M${a.x} ${a.y}L${b.x} ${b.y}`,
        class: link.open ? "link" : "link closed" }));
      if (trip) drawing.append(label((a.x + b.x) / 2, across ? across.y : (a.y + b.y) / 2, trip));
    }
  }

  // Where a line that passes the middle column finds room: below its first card.
  #between(a, b, frame) {
    const [card] = [...byId("column-2").children].map((each) => each.getBoundingClientRect()).sort((p, q) => p.top - q.top);
    if (!card || Math.min(a.x, b.x) > card.left - frame.left || Math.max(a.x, b.x) < card.right - frame.left) return null;
    return { from: card.left - frame.left, to: card.right - frame.left, y: card.bottom - frame.top + 20 };
  }

  async #kill() {
    const before = this.#seen.members.find((member) => member.role === "proposer")?.pid;
    try {
      await ask("POST", "/v1/mesh/kill", { body: { role: "proposer" } });
      this.#say(`Killed the proposer (pid ${before}), as by kill -9${this.watched.soFar}.`);
    } catch (error) {
      this.#say(error.message);
    }
  }

  #say(words) {
    byId("mesh-log").prepend(el("li", {}, el("time", {}, new Date().toLocaleTimeString("en-GB")), ` ${words}`));
    while (byId("mesh-log").childElementCount > 6) byId("mesh-log").lastChild.remove();
  }
}

// A long answer, to watch while a proposer is killed.
class Watched {
  #answer = new Answer();
  #runs = new Runs(byId("watched"));
  #stopping = null;
  #painter = new Painter(() => this.#draw());

  constructor(model, say) {
    this.model = model;
    this.say = say;
    byId("watch").addEventListener("click", () => (this.#stopping ? this.#stopping.abort() : this.#run()));
  }

  get soFar() { return this.#stopping ? `; the answer had ${counted(this.#answer.tokens.length, "token")} then` : ""; }

  async #run() {
    this.#answer = new Answer();
    this.#stopping = new AbortController();
    this.#runs.show(this.#answer);
    byId("watch").textContent = "Stop it";
    // A log never ends, and its drafts come from its own text: so one sees them stop and begin again.
    const { chat, text } = PROMPTS[0];
    const wishes = { model: this.model(), chat, maxTokens: LONGEST, temperature: 0, learn: false,
      salt: `watched ${Math.random()}` };
    try {
      await fill(this.#answer, chat, bodyFor(wishes, [], text), (_, at) => this.#painter.soon(at), this.#stopping.signal);
      const { usage, tokens } = this.#answer;
      this.say(`The answer ended well: all ${counted(usage?.completion_tokens ?? tokens.length, "token")} came.`);
    } catch (error) {
      this.say(error.name === "AbortError" ? "The answer was stopped." : `The answer failed: ${error.words ?? error.message}`);
    } finally {
      this.#stopping = null;
      byId("watch").textContent = "Start a long answer";
    }
  }

  #draw() {
    this.#runs.draw();
    const box = byId("watched"), { tokens, steps } = this.#answer;
    box.scrollTop = box.scrollHeight;
    const late = steps.slice(-20);
    const perStep = late.reduce((sum, step) => sum + step.tokens, 0) / Math.max(1, late.length);
    byId("watched-figures").textContent =
      `${counted(tokens.length, "token")}, ${perStep.toFixed(1)} a step in the last ${late.length} steps`;
  }
}

// Where the line between two cards begins and ends: the middles of the sides that face each other.
function ends(a, b, frame) {
  const middle = (box) => ({ x: box.left + box.width / 2 - frame.left, y: box.top + box.height / 2 - frame.top });
  const [p, q] = [middle(a), middle(b)];
  if (a.right <= b.left) return [{ x: a.right - frame.left, y: p.y }, { x: b.left - frame.left, y: q.y }];
  if (b.right <= a.left) return [{ x: a.left - frame.left, y: p.y }, { x: b.right - frame.left, y: q.y }];
  return p.y < q.y
    ? [{ x: p.x, y: a.bottom - frame.top }, { x: q.x, y: b.top - frame.top }]
    : [{ x: p.x, y: a.top - frame.top }, { x: q.x, y: b.bottom - frame.top }];
}

function arch(a, b, { from, to, y }) {
  const [p, q] = a.x < b.x ? [a, b] : [b, a];
  const bend = (from - p.x) / 2;
  return `M${p.x} ${p.y}C${p.x + bend} ${p.y} ${from - bend} ${y} ${from} ${y}L${to} ${y}`
    + `C${to + bend} ${y} ${q.x - bend} ${q.y} ${q.x} ${q.y}`;
}

function label(x, y, words) {
  const wide = 7 * words.length + 10;
  return svg("g", {},
    svg("rect", { x: x - wide / 2, y: y - 10, width: wide, height: 20, rx: 10, class: "trip" }),
    svg("text", { x, y: y + 4, "text-anchor": "middle", class: "tick" }, words));
}

function queue(length) {
  if (length === null || length === undefined) return "–";
  const bar = el("span", { class: "depth" }, el("span", {}));
  bar.firstChild.style.width = `${100 * length / (length + 8)}%`;
  return el("span", { class: "queued" }, bar, whole(length));
}

function figuresOf({ role, figures }) {
  const rows = (FIGURES[role] ?? []).filter(([name]) => figures?.[name] !== undefined);
  const most = figures?.max_sequences ? ` of ${whole(figures.max_sequences)}` : "";
  const running = figures?.running === undefined ? [] : [["running", `${whole(figures.running)}${most}`]];
  return [...running, ...rows.map(([name, words, shown]) => [words, shown(figures[name])])]
    .flatMap(([words, value]) => [el("dt", {}, words), el("dd", {}, value)]);
}
const ago = (seconds) => (seconds < 90 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`
  : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);
