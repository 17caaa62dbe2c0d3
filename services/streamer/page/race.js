// A race: the same prompt without and with speculation, side by side. In turns, each lane has the machine to itself,
// and the first is shown again at its own pace beside the second; at once, both share the worker's steps. Each has a
// new namespace, so that no lane copies the other, or an answer given earlier.

import { Answer } from "./answer.js";
import { bodyFor, fill } from "./ask.js";
import { Chart, progress } from "./charts.js";
import { byId, counted, duration, el, times, whole } from "./dom.js";
import { Painter, seldom } from "./paint.js";
import { PROMPTS } from "./prompts.js";
import { Runs } from "./runs.js";

const SEED = 20;
const GAIN = "Tokens per second with speculation, to those without.";

class Lane {
  answer = new Answer();
  points = [];    // [ms since the first text, tokens]
  recorded = [];  // {chunk, ms}, to be shown again
  #runs; #figures;

  constructor(id, name) {
    this.id = id;
    this.name = name;
    this.#runs = new Runs(byId(`${id}-text`));
    this.#figures = byId(`${id}-figures`);
  }

  begin() {
    this.answer = new Answer();
    this.points = [];
    this.#runs.show(this.answer);
  }

  took(chunk, at) {
    const { first, tokens } = this.answer;
    const ms = first === null ? 0 : at - first;
    this.recorded.push({ chunk, ms });
    if (first !== null && tokens.length) this.points.push([ms, tokens.length]);
  }

  draw() {
    this.#runs.draw();
    const { tokens, rate } = this.answer;
    const time = this.points.length > 1 ? duration(this.lasted) : null;
    this.#figures.textContent = tokens.length
      ? [counted(tokens.length, "token"), time, rate && `${whole(rate)} tokens/s`].filter(Boolean).join(" · ")
      : "";
  }

  get lasted() { return this.points.at(-1)?.[0] ?? 0; }
  tokensAt(ms) { return this.points.findLast(([when]) => when <= ms)?.[1] ?? 0; }
}

export class Race {
  #form = byId("race-form");
  #off = new Lane("off", "off");
  #on = new Lane("on", "on");
  #stopping = null;
  #painter = new Painter(() => this.#draw());
  #count = seldom(100, () => this.#chart.redraw());
  #chart = new Chart(byId("race-chart"), (width) => progress(width, [this.#off, this.#on]));

  // `model` gives the name of the model that is chosen on the page.
  constructor(model) {
    this.model = model;
    const fields = this.#form.elements;
    const take = ({ chat, text }) => {
      fields.mode.value = chat ? "chat" : "text";
      fields.prompt.value = text;
    };
    take(PROMPTS[0]);
    byId("race-samples").replaceChildren(...PROMPTS.map((each) =>
      el("button", { type: "button", class: "chip", on: { click: () => take(each) } }, each.name)));
    this.#form.addEventListener("submit", (event) => { event.preventDefault(); this.#run(); });
    byId("race-stop").addEventListener("click", () => this.#stopping?.abort());
  }

  async #run() {
    if (this.#stopping || !this.#form.elements.prompt.value.trim()) return;
    this.#stopping = new AbortController();
    this.#busy(true);
    this.#off.begin();
    this.#on.begin();
    byId("multiplier").textContent = "";
    byId("gain").textContent = GAIN;
    this.#verdict("");
    this.#draw();
    try {
      if (this.#form.elements.order.value === "once") {
        await Promise.all([this.#ride(this.#off), this.#ride(this.#on)]);
      } else {
        this.#verdict("First without speculation …");
        await this.#ride(this.#off);
        this.#verdict("Now with it, beside what was just seen");
        await this.#rideBeside(this.#off);
      }
      this.#ended();
    } catch (error) {
      this.#stopping.abort();
      this.#verdict(error.name === "AbortError" ? "Stopped." : error.words ?? error.message, "bad");
    } finally {
      this.#stopping = null;
      this.#busy(false);
    }
  }

  #ride(lane, onFirst) {
    const fields = this.#form.elements;
    const chat = fields.mode.value === "chat", text = fields.prompt.value;
    const wishes = {
      model: this.model(), chat, seed: SEED, learn: false, salt: `race ${Math.random()}`,
      maxTokens: fields.max_tokens.valueAsNumber, temperature: fields.temperature.valueAsNumber,
      method: lane === this.#off ? "off" : fields.method.value,
    };
    const body = bodyFor(wishes, [{ role: "user", content: text }], text);
    lane.recorded = [];
    return fill(lane.answer, chat, body, (answer, at, chunk) => {
      lane.took(chunk, at);
      if (answer.first !== null) onFirst?.(answer.first);
      this.#painter.soon(at);
    }, this.#stopping.signal);
  }

  // Both first texts come at one time: the one recorded waits for the other's.
  async #rideBeside(recorded) {
    const first = Promise.withResolvers();
    const { signal } = this.#stopping;
    signal.addEventListener("abort", () => first.resolve(null));
    const again = first.promise.then((begin) => this.#shownAgain(recorded, begin, signal));
    await this.#ride(this.#on, first.resolve);
    first.resolve(performance.now());
    await again;
  }

  async #shownAgain(lane, begin, signal) {
    const chunks = lane.recorded;
    lane.begin();
    lane.recorded = [];
    for (const { chunk, ms } of chunks) {
      while (performance.now() < begin + ms && !signal.aborted) await shortly();
      if (signal.aborted) return;
      lane.answer.take(chunk, begin + ms);
      lane.took(chunk, begin + ms);
      this.#painter.soon(performance.now());
    }
  }

  #draw() {
    this.#off.draw();
    this.#on.draw();
    this.#count();
    const ms = Math.min(this.#off.lasted, this.#on.lasted) || this.#on.lasted;
    const [off, on] = [this.#off.tokensAt(ms), this.#on.tokensAt(ms)];
    if (this.#stopping && off > 3 && on > 3) byId("multiplier").textContent = times(on / off);
  }

  #ended() {
    this.#draw();
    const [off, on] = [this.#off, this.#on];
    const same = off.answer.text === on.answer.text;
    if (on.lasted && off.lasted) {
      byId("multiplier").textContent = times(on.answer.rate / off.answer.rate);
      byId("gain").textContent = `${whole(on.answer.rate)} tokens a second instead of ${whole(off.answer.rate)}`;
    }
    const where = off.answer.chars.findIndex((character, place) => character !== on.answer.chars[place]);
    const differs = ` (they part at character ${whole((where < 0 ? off.answer.chars.length : where) + 1)})`;
    this.#verdict(`Identical text: ${same ? "yes" : `no${differs}`}`, same ? "good" : "bad");
  }

  #verdict(words, mood = "") {
    const verdict = byId("verdict");
    verdict.textContent = words;
    verdict.className = mood;
  }

  #busy(busy) {
    byId("race-start").hidden = busy;
    byId("race-stop").hidden = !busy;
    byId("race").setAttribute("aria-busy", busy);
  }
}

const shortly = () => new Promise((done) => setTimeout(done, 8));
