// Charts as SVG, drawn to the width there is and drawn anew when that changes. Values in, elements out.

import { counted, duration, el, percent, svg, times, whole } from "./dom.js";
import { nameOf, originOf } from "./origins.js";
import { byPosition } from "./answer.js";

const LEFT = 38, RIGHT = 10, TOP = 10, BOTTOM = 26;

// A place for a chart: draw(width) gives {node, says} or null, where there is nothing to see yet.
export class Chart {
  #figure; #draw; #width = 0;

  constructor(figure, draw) {
    this.#figure = figure;
    this.#draw = draw;
    new ResizeObserver(() => {
      if (figure.clientWidth && figure.clientWidth !== this.#width) this.redraw();
    }).observe(figure);
  }

  redraw() {
    this.#width = this.#figure.clientWidth;
    if (!this.#width) return;  // not seen
    const place = this.#figure.querySelector(".chart");
    const drawn = this.#draw(place.clientWidth);
    place.replaceChildren(drawn ? drawn.node : el("p", { class: "nothing" }, place.dataset.empty));
    drawn?.node.setAttribute("role", "img");
    drawn?.node.setAttribute("aria-label", drawn?.says);
  }
}

const canvas = (width, height) => svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
const text = (x, y, words, more = {}) => svg("text", { x, y, ...more }, words);
const rect = (x, y, width, height, more) =>
  svg("rect", { x, y, width: Math.max(0, width), height: Math.max(0, height), ...more });
const line = (x1, y1, x2, y2, more) => svg("line", { x1, y1, x2, y2, ...more });
const titled = (node, words) => { node.append(svg("title", {}, words)); return node; };

// The bar is the share accepted of the drafts that reached a position; its background is the share that reached it.
export function acceptance(width, steps) {
  const positions = byPosition(steps);
  if (!positions.length) return null;
  const height = 170, inside = height - TOP - BOTTOM, room = width - LEFT - RIGHT;
  const node = canvas(width, height);
  for (const share of [0, 0.5, 1]) {
    const y = TOP + inside * (1 - share);
    node.append(line(LEFT, y, width - RIGHT, y, { class: "grid" }),
      text(LEFT - 6, y + 4, percent(share), { class: "tick", "text-anchor": "end" }));
  }
  const pitch = Math.min(44, room / positions.length), bar = Math.max(2, pitch - Math.max(1, pitch / 5));
  const every = Math.ceil(18 / pitch);
  positions.forEach(({ drafted, accepted }, place) => {
    const x = LEFT + place * pitch, share = accepted / drafted;
    const reach = drafted / positions[0].drafted;
    node.append(titled(svg("g", {},
      rect(x, TOP + inside * (1 - reach), bar, inside * reach, { class: "reach" }),
      rect(x, TOP + inside * (1 - share * reach), bar, inside * share * reach, { class: "stands" })),
      `position ${place + 1}: ${accepted} of ${drafted} accepted (${percent(share)})`));
    if (place % every === 0) {
      node.append(text(x + bar / 2, height - 9, place + 1, { class: "tick", "text-anchor": "middle" }));
    }
  });
  const [first] = positions;
  const says = `Acceptance by position: of ${counted(first.drafted, "draft")} ` +
    `${percent(first.accepted / first.drafted)} accepted at the first position; the longest draft had ${positions.length} tokens.`;
  return { node, says };
}

// Each verify step, in order: upwards its tokens, in the colour of their source; downwards the rejected ones.
export function stepsInOrder(width, steps) {
  if (!steps.length) return null;
  const height = 170, room = width - LEFT - RIGHT;
  const up = Math.max(2, ...steps.map((step) => step.tokens));
  const down = Math.max(0, ...steps.map((step) => step.drafted - step.accepted));
  const unit = (height - TOP - BOTTOM) / (up + down), zero = TOP + up * unit;
  const node = canvas(width, height);
  node.append(
    line(LEFT, zero, width - RIGHT, zero, { class: "axis" }),
    text(LEFT - 6, TOP + 9, whole(up), { class: "tick", "text-anchor": "end" }),
    text(LEFT - 6, zero + 4, "0", { class: "tick", "text-anchor": "end" }));
  if (down) node.append(text(LEFT - 6, zero + down * unit, whole(down), { class: "tick", "text-anchor": "end" }));
  const pitch = Math.min(14, room / steps.length), bar = Math.max(0.6, pitch - Math.min(2, pitch / 4));
  steps.forEach((step, place) => {
    const x = LEFT + place * pitch, own = step.tokens - step.accepted, fell = step.drafted - step.accepted;
    const words = step.drafted
      ? `step ${step.number}: ${nameOf(step.source)}, ${step.accepted} of ${step.drafted} accepted`
      : `step ${step.number}: no draft`;
    node.append(titled(svg("g", {},
      rect(x, zero - step.accepted * unit, bar, step.accepted * unit, { class: `fill ${originOf(step.source)}` }),
      rect(x, zero - step.tokens * unit, bar, own * unit, { class: `fill ${step.drafted ? "bonus" : "plain"}` }),
      rect(x, zero, bar, fell * unit, { class: "fell" })), words));
  });
  const name = text(LEFT, height - 9, "first step", { class: "tick" });
  const end = text(Math.min(width - RIGHT, LEFT + Math.max(150, pitch * steps.length)), height - 9,
    `step ${whole(steps.at(-1).number)}`, { class: "tick", "text-anchor": "end" });
  node.append(name, end);
  const drafted = steps.filter((step) => step.drafted).length;
  return { node, says: `${counted(steps.length, "step")}, ${drafted} of them with a draft.` };
}

// Tokens over time, one line a lane. lanes: [{id, name, points: [[ms, tokens], ...]}]
export function progress(width, lanes) {
  const points = lanes.flatMap((lane) => lane.points);
  if (points.length < 2) return null;
  const height = 200, room = width - LEFT - RIGHT - 40, inside = height - TOP - BOTTOM;
  const longest = Math.max(1, ...points.map(([ms]) => ms)), most = Math.max(1, ...points.map(([, count]) => count));
  const node = canvas(width, height);
  for (const share of [0, 0.5, 1]) {
    const y = TOP + inside * (1 - share), x = LEFT + room * share;
    node.append(line(LEFT, y, LEFT + room, y, { class: "grid" }),
      text(LEFT - 6, y + 4, whole(most * share), { class: "tick", "text-anchor": "end" }),
      text(x, height - 9, share ? duration(longest * share) : "0", { class: "tick", "text-anchor": "middle" }));
  }
  for (const { id, name, points: own } of lanes) {
    if (!own.length) continue;
    const at = ([ms, count]) => [LEFT + room * ms / longest, TOP + inside * (1 - count / most)];
    const path = own.map((point) => at(point).map((value) => value.toFixed(1)).join(",")).join(" ");
    const [x, y] = at(own.at(-1));
    node.append(svg("polyline", { points: path, class: `lane ${id}` }),
      text(Math.min(x + 6, width - RIGHT - 34), Math.max(y + 4, 14), name, { class: `tick lane-name ${id}` }));
  }
  const [slow, fast] = lanes;
  const says = lanes.map((lane) => `${lane.name}: ${lane.points.at(-1)?.[1] ?? 0} tokens`).join("; ");
  return { node, says: `Tokens over time. ${says}${slow && fast ? "" : "."}` };
}

export { canvas, line, rect, text, titled, times };
