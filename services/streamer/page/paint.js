// Draws once a frame, however many chunks came, and measures the delay from a chunk to its painting. A chunk's time is when its bytes were read; a frame's is the first task after it was painted.

export class Painter {
  lags = [];  // ms, one a frame
  #draw;
  #since = null;

  constructor(draw) { this.#draw = draw; }

  reset() { this.lags = []; }

  // The quantile of the delays, in ms; null without frames.
  lag(share) {
    const sorted = this.lags.toSorted((a, b) => a - b);
    return sorted.length ? sorted[Math.ceil(share * sorted.length) - 1] : null;
  }

  soon(at) {
    if (this.#since !== null) return;
    this.#since = at;
    // A page that isn't seen has no frames.
    if (document.hidden) setTimeout(() => this.#frame());
    else requestAnimationFrame(() => this.#frame());
  }

  #frame() {
    const since = this.#since;
    this.#since = null;
    this.#draw();
    const painted = new MessageChannel();
    painted.port1.onmessage = () => this.lags.push(performance.now() - since);
    painted.port2.postMessage(null);
  }
}

// At most once in `ms`, and once more behind the last call.
export function seldom(ms, act) {
  let waiting = null, last = -Infinity;
  return () => {
    if (waiting !== null) return;
    waiting = setTimeout(() => {
      waiting = null;
      last = performance.now();
      act();
    }, Math.max(0, last + ms - performance.now()));
  };
}
