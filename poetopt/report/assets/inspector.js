// The panel beside the charts: the instruction at the cursor, the moment, and all that is in RAM then.
const LIST = 60;

function livingAt(step) {
  const found = [];
  for (let k = 0; k < BUFFERS.index.length; k++)
    if (BUFFERS.first[k] <= step && step <= BUFFERS.last[k] && BUFFERS.bytes[k] > 0) found.push(k);
  return found.sort((a, b) => BUFFERS.bytes[b] - BUFFERS.bytes[a] || a - b);
}

function since(k) {
  const first = BUFFERS.first[k];
  if (BUFFERS.workspace[k]) return "while it runs";
  const start = first < 0 ? "from the start" : `since stage ${STEPS.stage[first]}`;
  const left = BUFFERS.last[k] >= N_STEPS - 1 ? "" : `, until stage ${STEPS.stage[BUFFERS.last[k]]}`;
  return `${BUFFER_WORDS[BUFFER_KIND[k]]}, ${start}${left}`;
}

let inspected = -1;
function inspect() {
  if (!N_STEPS) { byId("where").textContent = "The plan has no instructions."; return; }
  const i = state.step;
  if (inspected === i) return;
  inspected = i;
  const live = STEPS.live_bytes[i], stage = STEPS.stage[i];
  byId("where").textContent = stepWords(i);
  const rows = [
    ["instruction", `${i + 1} of ${N_STEPS}`],
    ["stage", `${stage} of ${N_OPS}`],
    ["its operator", OPS.name[stage] ?? ""],
    ["time", showSeconds(STEPS.start_s[i])],
    ["takes", STEPS.end_s[i] > STEPS.start_s[i] ? showSeconds(STEPS.end_s[i] - STEPS.start_s[i]) : "no time"],
    ["in RAM", D.budget_bytes ? `${showBytes(live)}, ${showShare(live / D.budget_bytes)} of the budget` : showBytes(live)],
  ];
  if (STEPS.action[i] === COMPUTE && OPS.kind[STEPS.target[i]]) rows.splice(1, 0, ["kind", OPS.kind[STEPS.target[i]]]);
  const chunks = D.streamed[i];
  if (chunks) {
    const names = (tensors) => tensors.map((k) => TENSORS.name[k]).join(", ");
    if (chunks.in.length) rows.push(["streams in", `${names(chunks.in)}: ${showBytes(chunks.read_bytes)} in chunks`]);
    if (chunks.out.length) rows.push(["streams out", `${names(chunks.out)}: ${showBytes(chunks.written_bytes)} in chunks`]);
  }
  byId("moment").replaceChildren(...rows.flatMap(([label, value]) => [make("dt", {}, label), make("dd", {}, value)]));
  const most = Math.max(D.budget_bytes > ROOMY * D.peak_bytes ? 0 : (D.budget_bytes ?? 0), D.peak_bytes, 1);
  byId("fill").replaceChildren(...STACK.map((kind, s) =>
    make("span", { style: { background: `var(--${kind})`, width: `${(100 * STACKED[s][i]) / most}%` } })));
  const living = livingAt(i), entries = living.slice(0, LIST).map((k) =>
    make("li", {},
      make("i", { style: { background: `var(--${BUFFER_KIND[k]})` } }),
      make("span", { class: "name" }, bufferName(k), make("span", { class: "why" }, since(k))),
      make("span", {}, showBytes(BUFFERS.bytes[k]))));
  if (D.reserve_bytes) entries.push(make("li", {},
    make("i", { style: { background: "var(--reserve)" } }),
    make("span", { class: "name" }, "kernels", make("span", { class: "why" }, "reserved for what kernels allocate")),
    make("span", {}, showBytes(D.reserve_bytes))));
  if (living.length > LIST) {
    const rest = living.slice(LIST).reduce((sum, k) => sum + BUFFERS.bytes[k], 0);
    entries.push(make("li", {}, make("i"), make("span", {}, `and ${living.length - LIST} smaller`), make("span", {}, showBytes(rest))));
  }
  byId("living-title").textContent = `In RAM: ${count(living.length, "buffer")}`;
  byId("living").replaceChildren(...entries);
}
painters.push(inspect);
tools("cursor-tools", [
  ["‹", "Previous recompute or transfer (P)", () => nextEvent(false)],
  ["›", "Next recompute or transfer (N)", () => nextEvent(true)],
  ["Peak", "To the instruction with most in RAM", () => moveTo(STEPS.live_bytes.indexOf(Math.max(...STEPS.live_bytes)))],
]);
