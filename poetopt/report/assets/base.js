// Data, figures, colours, and the small things that every part uses. Names are set as text, never as markup.
const D = JSON.parse(document.getElementById("data").textContent);
const OPS = D.operators, TENSORS = D.tensors, STEPS = D.steps, BUFFERS = D.buffers, SLICES = D.slices;
const COMPUTE = 0, PAGE_OUT = 1, PAGE_IN = 2, FREE = 3;
const N_OPS = OPS.name.length, N_STEPS = STEPS.action.length;
const KINDS = ["forward", "backward", "recompute", "page_out", "page_in", "wait"];
const FIRST_RUN = new Array(N_OPS).fill(-1);
for (let i = 0; i < N_STEPS; i++)
  if (STEPS.action[i] === COMPUTE && !STEPS.again[i]) FIRST_RUN[STEPS.target[i]] = i;

const ROOMY = 1.6;  // A budget of more than that many times what is in RAM would flatten the charts.

const byId = (id) => document.getElementById(id);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    if (key === "style") Object.assign(node.style, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function scaled(value, unit, prefixes) {
  if (!value) return `0 ${unit}`;
  for (const [prefix, scale] of prefixes)
    if (Math.abs(value) >= scale * 0.9995) {
      const x = value / scale, digits = Math.abs(x) < 9.995 ? 2 : Math.abs(x) < 99.95 ? 1 : 0;
      return `${x.toFixed(digits)} ${prefix}${unit}`;
    }
  const [prefix, scale] = prefixes[prefixes.length - 1];
  return `${Number((value / scale).toPrecision(2))} ${prefix}${unit}`;
}
const SMALL = [["", 1], ["m", 1e-3], ["µ", 1e-6], ["n", 1e-9]];
const showBytes = (b) => (b < 1000 ? `${b} B` : scaled(b, "B", [["G", 1e9], ["M", 1e6], ["k", 1e3]]));
const showJoules = (e) => scaled(e, "J", [["k", 1e3], ...SMALL]);
function showSeconds(t) {
  if (t < 120) return scaled(t, "s", SMALL);
  const s = Math.round(t), h = Math.floor(s / 3600), m = Math.floor((s % 3600) / 60);
  return h ? `${h} h ${m} min` : `${m} min ${s % 60} s`;
}
const trimmed = (figure) => figure.replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " ");
const showShare = (x) => `${Number((100 * x).toPrecision(3))} %`;
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
const shorten = (text, most = 46) =>
  text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(-Math.floor(most / 2))}`;

// The end of a name tells it from its neighbours: module paths begin alike.
const tail = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);

// Colours are the stylesheet's, read again when the theme changes.
let ink = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  ink = {};
  for (const name of ["paper", "card", "ink", "soft", "line", "grid", "accent", "shade", "forward", "backward", "recompute",
    "page_out", "page_in", "resident", "storage", "wait", "budget", "input", "activation", "gradient", "workspace",
    "reserve", "again", "back", "fixed", "ordinary"]) ink[name] = style.getPropertyValue(`--${name}`).trim();
}
readColours();

// What a buffer is, for colours and words: input, activation, again (made by a recompute), back (paged in), gradient, workspace.
const BUFFER_KIND = BUFFERS.index.map((index, k) => {
  if (BUFFERS.workspace[k]) return "workspace";
  const first = BUFFERS.first[k];
  if (first >= 0 && STEPS.action[first] === PAGE_IN) return "back";
  if (first >= 0 && STEPS.again[first]) return "again";
  const producer = TENSORS.producer[index];
  return producer < 0 ? "input" : OPS.backward[producer] ? "gradient" : "activation";
});
const BUFFER_WORDS = {
  input: "graph input", activation: "activation", again: "recomputed", back: "paged in", gradient: "gradient",
  workspace: "workspace", reserve: "reserved for kernels",
};
const STACK = ["reserve", "input", "activation", "again", "back", "gradient", "workspace"];
const bufferName = (k) =>
  BUFFERS.workspace[k] ? `workspace of ${OPS.name[BUFFERS.index[k]]}` : TENSORS.name[BUFFERS.index[k]];

// Live bytes of each kind during each instruction, from the buffers alone.
const STACKED = STACK.map((kind) => {
  const change = new Float64Array(N_STEPS + 1);
  BUFFER_KIND.forEach((k, b) => {
    if (k !== kind) return;
    change[Math.max(BUFFERS.first[b], 0)] += BUFFERS.bytes[b];
    change[BUFFERS.last[b] + 1] -= BUFFERS.bytes[b];
  });
  const live = new Float64Array(N_STEPS);
  let sum = kind === "reserve" ? D.reserve_bytes : 0;
  for (let i = 0; i < N_STEPS; i++) live[i] = sum += change[i];
  return live;
});

function stepWords(i) {
  const target = STEPS.target[i];
  switch (STEPS.action[i]) {
    case COMPUTE: return `${STEPS.again[i] ? "recompute" : "compute"} ${OPS.name[target]}${D.streamed[i] ? ", streaming" : ""}`;
    case PAGE_OUT: return `page out ${TENSORS.name[target]}`;
    case PAGE_IN: return `page in ${TENSORS.name[target]}`;
    default: return `free ${TENSORS.name[target]}`;
  }
}
function stepColour(i) {
  const target = STEPS.target[i];
  if (STEPS.action[i] === PAGE_OUT) return ink.page_out;
  if (STEPS.action[i] === PAGE_IN) return ink.page_in;
  return STEPS.again[i] ? ink.recompute : OPS.backward[target] ? ink.backward : ink.forward;
}

function legend(id, entries) {
  byId(id).replaceChildren(...entries.map(([colour, text, line]) =>
    make("li", {}, make("i", { class: line ? "line" : "", style: { background: `var(--${colour})` } }), text)));
}
function tools(id, entries) {
  const group = make("span", { class: "group" });
  for (const [text, title, press] of entries) group.append(make("button", { type: "button", title, onclick: press }, text));
  byId(id).append(group);
  return [...group.children];
}

// One cursor for the whole page: an instruction. Parts register to be drawn when it, the theme or the size changes.
const state = { step: 0, column: 0 };
const painters = [];
let queued = false;
function repaint() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; painters.forEach((paint) => paint()); });
}
function moveTo(step, column) {
  if (!N_STEPS) return;
  state.step = clamp(step, 0, N_STEPS - 1);
  state.column = column ?? columnOf(state.step);
  repaint();
}
// The schedule's columns: the graph inputs, then the operators.
const INPUTS = TENSORS.producer.flatMap((producer, i) => (producer < 0 ? [i] : []));
const N_COLUMNS = INPUTS.length + N_OPS;
const columnOfTensor = (i) => (TENSORS.producer[i] < 0 ? INPUTS.indexOf(i) : INPUTS.length + TENSORS.producer[i]);
const columnOf = (i) =>
  STEPS.action[i] === COMPUTE ? INPUTS.length + STEPS.target[i] : columnOfTensor(STEPS.target[i]);
const columnName = (c) => (c < INPUTS.length ? TENSORS.name[INPUTS[c]] : OPS.name[c - INPUTS.length]);
const columnTensors = (c) => (c < INPUTS.length ? [INPUTS[c]] : OPS.outputs[c - INPUTS.length]);
const EVENTS = [];
for (let i = 0; i < N_STEPS; i++) if (STEPS.again[i] || STEPS.action[i] === PAGE_IN || STEPS.action[i] === PAGE_OUT) EVENTS.push(i);
function nextEvent(forwards) {
  const found = forwards ? EVENTS.find((i) => i > state.step) : EVENTS.findLast((i) => i < state.step);
  if (found !== undefined) moveTo(found);
}

// A canvas with the sharpness of the screen; coordinates are CSS pixels.
function surface(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  g.textBaseline = "middle";
  return { g, width, height, pixel: 1 / ratio };
}

function tip(event, text) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}
