// Drawing once a frame, however many chunks came, and how long after its chunk a thing was seen: that is measured,
// not believed. A chunk's time is when its bytes were read; a frame's is the first task after it was painted.

export class Painter {
  last = 0;  // ms
  most = 0;
  frames = 0;
  #draw;
  #since = null;

  constructor(draw) { this.#draw = draw; }

  reset() { this.last = this.most = this.frames = 0; }

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
    painted.port1.onmessage = () => this.#note(performance.now() - since);
    painted.port2.postMessage(null);
  }

  #note(ms) {
    this.frames++;
    this.last = ms;
    this.most = Math.max(this.most, ms);
  }
}
