// The playground: a form, a conversation or a text that goes on, and the drafts of its last answer.

import { Answer } from "./answer.js";
import { bodyFor, fill } from "./ask.js";
import { acceptance, Chart, stepsInOrder } from "./charts.js";
import { byId, counted, duration, el, percent, whole } from "./dom.js";
import { legend } from "./origins.js";
import { Painter, seldom } from "./paint.js";
import { PROMPTS } from "./prompts.js";
import { Runs } from "./runs.js";
import { timeline } from "./timeline.js";

export class Playground {
  #form = byId("ask");
  #prompt = byId("prompt");
  #turns = byId("turns");
  #messages = [];      // of the conversation so far
  #answer = null;
  #runs = null;
  #stopping = null;    // of the answer under way
  #charts = [];
  #painter = new Painter(() => this.#draw());
  // The text comes first: what is counted from it may be some frames late.
  #count = seldom(200, () => this.#counted());

  constructor() {
    const steps = () => this.#answer?.steps ?? [];
    this.#charts = [
      new Chart(byId("by-position"), (width) => acceptance(width, steps())),
      new Chart(byId("in-order"), (width) => stepsInOrder(width, steps())),
      new Chart(byId("timeline"), (width) => timeline(width, this.#answer?.metrics?.timeline)),
    ];
    byId("legend").replaceChildren(...legend([]));
    byId("samples").replaceChildren(...PROMPTS.map((each) =>
      el("button", { type: "button", class: "chip", on: { click: () => this.#take(each) } }, each.name)));
    this.#form.addEventListener("submit", (event) => { event.preventDefault(); this.#send(); });
    this.#prompt.addEventListener("keydown", (event) => {
      // While a word is being composed (East Asian input) Enter belongs to that.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#form.requestSubmit();
    });
    byId("stop").addEventListener("click", () => this.#stopping?.abort());
    byId("anew").addEventListener("click", () => this.#anew());
    byId("ghosts").addEventListener("change", (event) =>
      this.#turns.classList.toggle("ghosts", event.target.checked));
    for (const radio of this.#form.elements.mode) radio.addEventListener("change", () => this.#anew());
  }

  #wishes() {
    const fields = this.#form.elements;
    return {
      model: fields.model.value,
      chat: fields.mode.value === "chat",
      maxTokens: fields.max_tokens.valueAsNumber,
      temperature: fields.temperature.valueAsNumber,
      method: fields.method.value,
      draftLength: fields.draft_length.valueAsNumber || null,
      prediction: fields.prediction.value,
      namespace: fields.namespace.value.trim(),
      learn: fields.learn.checked,
    };
  }

  #take({ chat, text }) {
    const wanted = chat ? "chat" : "text";
    if (this.#form.elements.mode.value !== wanted) {
      this.#form.elements.mode.value = wanted;
      this.#anew();
    }
    this.#prompt.value = text;
    this.#prompt.focus();
    this.#prompt.setSelectionRange(0, 0);
    this.#prompt.scrollTop = 0;
  }

  #anew() {
    this.#stopping?.abort();
    this.#messages = [];
    this.#answer = null;
    this.#turns.replaceChildren();
    byId("howto").hidden = false;
    byId("anew").disabled = true;
    byId("legend").replaceChildren(...legend([]));
    byId("figures").hidden = true;
    this.#charts.forEach((chart) => chart.redraw());
  }

  async #send() {
    const text = this.#prompt.value;
    if (!text.trim() || this.#stopping) return;
    const wishes = this.#wishes();
    if (wishes.chat) this.#messages.push({ role: "user", content: text });
    const body = bodyFor(wishes, this.#messages, text);
    const turn = this.#newTurn(wishes.chat ? "You" : "Text", text);
    if (wishes.chat) this.#prompt.value = "";
    try {
      await fill(this.#answer, wishes.chat, body, (_, at) => this.#painter.soon(at), this.#stopping.signal);
      this.#told(`Answer ended: ${counted(this.#answer.tokens.length, "token")}.`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      turn.append(stopped ? el("p", { class: "aside" }, "Stopped.") : this.#failure(error, text, turn));
      this.#told(stopped ? "Stopped." : error.words ?? error.message);
    } finally {
      this.#stopping = null;
      this.#busy(false);
    }
    if (!wishes.chat) return;
    // What was answered is part of the conversation; where nothing was, the question isn't either.
    if (this.#answer?.text) this.#messages.push({ role: "assistant", content: this.#answer.text });
    else this.#messages.pop();
  }

  #newTurn(who, text) {
    this.#answer = new Answer();
    this.#stopping = new AbortController();
    const said = el("div", { class: "answer", role: "group", "aria-label": "Answer" });
    const turn = el("article", { class: "turn" },
      el("h3", {}, who), el("div", { class: "asked" }, text), el("h3", {}, "Model"), said);
    byId("howto").hidden = true;
    this.#turns.append(turn);
    this.#runs = new Runs(said);
    this.#runs.show(this.#answer);
    this.#painter.reset();
    this.#busy(true);
    this.#draw();
    // Where the answer stands below the form, it comes to the top, and a keyboard on the screen goes away.
    const below = matchMedia("(max-width: 860px)").matches;
    if (below) document.activeElement?.blur();
    (below ? said : turn).scrollIntoView({ block: below ? "start" : "nearest" });
    return turn;
  }

  #failure(error, text, turn) {
    const answered = this.#answer.text !== "";
    const again = el("button", { type: "button", on: { click: () => {
      (answered ? box : turn).remove();
      this.#prompt.value = text;
      this.#form.requestSubmit();
    } } }, "Try again");
    const heading = { 0: "No connection", 401: "A key is needed", 429: "The server is busy", 503: "Not ready" };
    const box = el("div", { class: "failure" },
      el("p", {}, el("b", {}, heading[error.status] ?? `Refused (${error.status})`), ` ${error.words ?? error.message}`),
      error.status === 401 ? el("p", {}, "Enter it in the form, under “Namespace and key”.") : again);
    if (error.status === 401) byId("key").closest("details").open = true;
    return box;
  }

  #busy(busy) {
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    byId("anew").disabled = busy && this.#turns.childElementCount < 2;
    this.#turns.setAttribute("aria-busy", busy);
    if (!busy) this.#painter.soon(performance.now());
  }

  #told(words) { byId("told").textContent = words; }

  #draw() {
    const answer = this.#answer;
    if (!answer) return;
    const atEnd = scrollY + innerHeight > document.documentElement.scrollHeight - 80;
    this.#runs.draw();
    this.#count();
    if (this.#stopping && atEnd) scrollTo({ top: document.documentElement.scrollHeight });
  }

  #counted() {
    if (!this.#answer) return;
    if (this.#answer.tokens.length) byId("legend").replaceChildren(...legend(this.#answer.tokens));
    this.#figures(this.#answer);
    this.#charts.forEach((chart) => chart.redraw());
  }

  #figures(answer) {
    byId("figures").hidden = answer.first === null;
    if (answer.first === null) return;
    const { drafted, accepted, rate } = answer;
    const show = (id, value) => { byId(id).textContent = value ?? "–"; };
    show("f-tokens", whole(answer.tokens.length));
    show("f-first", duration(answer.first - answer.asked));
    show("f-rate", rate && whole(rate));
    show("f-steps", (answer.tokens.length / Math.max(1, answer.steps.length)).toFixed(2));
    show("f-stood", drafted ? percent(accepted / drafted) : null);
    const late = this.#painter.lag(0.95);
    show("f-behind", late && duration(late));
  }
}
