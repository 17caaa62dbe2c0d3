// What all parts of the page share: which one is seen, the model's name, the server's health, light and dark.

import { byId, el } from "./dom.js";
import { MeshMap } from "./mesh.js";
import { Playground } from "./playground.js";
import { Race } from "./race.js";
import { ask, key } from "./stream.js";

const VIEWS = ["playground", "race", "mesh"];
const HEALTH_EVERY = 5000;  // ms

const model = () => byId("model").value;
new Playground();
new Race(model);
const mesh = new MeshMap(model);

function show() {
  const wanted = location.hash.slice(1);
  const view = VIEWS.includes(wanted) ? wanted : VIEWS[0];
  for (const each of VIEWS) {
    byId(each).hidden = each !== view;
    const link = document.querySelector(`nav a[href="#${each}"]`);
    if (each === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view[0].toUpperCase()}${view.slice(1)} · specmesh`;
  mesh.shown(view === "mesh");
}

// Whether a worker has told what it has.
async function models() {
  const { data } = await ask("GET", "/v1/models");
  byId("model").replaceChildren(...data.map(({ id }) => el("option", {}, id)));
  offer(data[0].methods);
  return data[0].methods !== undefined;
}

// The menus of methods have all there are; those that aren't loaded can't be chosen. `methods`: undefined while no
// worker has told which it has.
function offer(methods) {
  for (const option of document.querySelectorAll("select[name=method] option")) {
    option.hidden = option.disabled = methods !== undefined && !["", "off", ...methods].includes(option.value);
  }
}

const WORDS = { ready: "ready", degraded: "ready, in part", unready: "not ready" };
let known = false;  // whether the models are

async function health() {
  const box = byId("health");
  try {
    const { status, reasons, degraded } = await ask("GET", "/health/ready", { accept: 503 });
    box.dataset.state = status;
    box.lastChild.data = WORDS[status] ?? status;
    box.title = [...reasons, ...degraded].join("\n");
    if (!known) known = await models().catch(() => false);
  } catch {
    box.dataset.state = "gone";
    box.lastChild.data = "no answer";
    box.title = "";
  }
  byId("gone").hidden = box.dataset.state !== "gone";
}

// Light or dark as the system has it, until the user chooses.
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
function paintTheme() {
  document.documentElement.dataset.theme = theme();
  byId("theme").setAttribute("aria-pressed", theme() === "dark");
}
byId("theme").addEventListener("click", () => {
  localStorage.setItem("theme", theme() === "dark" ? "light" : "dark");
  paintTheme();
});
dark.addEventListener("change", paintTheme);

byId("key").value = key.value;
byId("key").addEventListener("change", (event) => {
  key.value = event.target.value;
  known = false;
  health();
});

addEventListener("hashchange", show);
paintTheme();
show();
health();
setInterval(() => document.hidden || health(), HEALTH_EVERY);
