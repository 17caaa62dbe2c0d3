// One answer as it comes: its text, its tokens with their origins, its verify steps. Knows chunks of the API; draws
// nothing.

export class Answer {
  chars = [];   // characters of the text: offsets of the API count these, not UTF-16 units
  tokens = [];  // {offset, step, own}: own is the model's token of the step, the others were drafted
  steps = [];   // {number, source, matched, drafted, accepted, tokens, rejected, at}
  asked = performance.now();
  first = null; // when the first text came, and the last
  last = null;
  reason = null;
  usage = null;
  metrics = null;

  get text() { return this.chars.join(""); }
  get drafted() { return this.steps.reduce((sum, step) => sum + step.drafted, 0); }
  get accepted() { return this.steps.reduce((sum, step) => sum + step.accepted, 0); }
  get ended() { return this.reason !== null; }

  take(chunk, at) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.metrics) this.metrics = chunk.metrics;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const text = choice.delta?.content ?? choice.text ?? "";
    for (const character of text) this.chars.push(character);
    for (const run of choice.runs ?? []) this.#run(run, at);
    if (text || choice.runs?.length) {
      this.first ??= at;
      this.last = at;
    }
    this.reason = choice.finish_reason ?? this.reason;
  }

  // A step's tokens may come in parts (some were held back): its numbers add up.
  #run(run, at) {
    let step = this.steps.at(-1);
    if (step?.number !== run.step) {
      step = { number: run.step, source: run.source, matched: run.match_length,
               drafted: 0, accepted: 0, tokens: 0, rejected: [], at };
      this.steps.push(step);
    }
    step.drafted += run.drafted;
    step.accepted += run.accepted;
    step.tokens += run.tokens;
    step.rejected.push(...run.rejected);
    run.offsets.forEach((offset, place) => this.tokens.push({ offset, step, own: place >= run.accepted }));
  }

  // The text of token number `index`, as far as it is there.
  textOf(index) {
    const end = this.tokens[index + 1]?.offset ?? this.chars.length;
    return this.chars.slice(this.tokens[index].offset, end).join("");
  }

  // Tokens per second of decoding: from the first text on, so that a cached prompt makes no difference.
  get rate() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.tokens.length - this.#tokensAtFirst) / seconds : null;
  }

  get #tokensAtFirst() { return this.steps.filter((step) => step.at === this.first)
    .reduce((sum, step) => sum + step.tokens, 0); }
}

// Drafts at each position: how many were drafted, and how many accepted.
export function byPosition(steps) {
  const positions = [];
  for (const { drafted, accepted } of steps) {
    for (let place = 0; place < drafted; place++) {
      positions[place] ??= { drafted: 0, accepted: 0 };
      positions[place].drafted++;
      if (place < accepted) positions[place].accepted++;
    }
  }
  return positions;
}
