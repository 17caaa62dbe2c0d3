// Making elements, in as few words as possible. Text goes in as text: nothing here reads HTML.

export const byId = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Numbers as people read them.
export const whole = (value) => Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
export const percent = (share) => `${Math.round(100 * share)} %`;
export const times = (factor) => `${factor.toFixed(factor < 10 ? 2 : 1)} ×`;
export function duration(ms) {
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}
export const counted = (count, one, several = `${one}s`) => `${whole(count)} ${count === 1 ? one : several}`;
