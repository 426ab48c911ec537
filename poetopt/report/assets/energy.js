// Joules: in all, by operator, and by kind of operator.
const PARTS = ["forward", "backward", "recompute", "page_out", "page_in"];
const PART_WORDS = { forward: "forward", backward: "backward", recompute: "recompute", page_out: "page out", page_in: "page in" };
const JOULES = PARTS.map(() => new Float64Array(N_COLUMNS));
for (let i = 0; i < N_STEPS; i++) {
  const target = STEPS.target[i];
  switch (STEPS.action[i]) {
    case COMPUTE: {
      JOULES[STEPS.again[i] ? 2 : OPS.backward[target] ? 1 : 0][columnOf(i)] += OPS.energy_j[target];
      const chunks = D.streamed[i];
      if (chunks) {  // what they take counts as transfers, by their bytes
        const share = chunks.written_bytes / ((chunks.read_bytes + chunks.written_bytes) || 1);
        JOULES[3][columnOf(i)] += share * chunks.more_j;
        JOULES[4][columnOf(i)] += (1 - share) * chunks.more_j;
      }
      break;
    }
    case PAGE_OUT: JOULES[3][columnOf(i)] += TENSORS.page_out_j[target]; break;
    case PAGE_IN: JOULES[4][columnOf(i)] += TENSORS.page_in_j[target]; break;
  }
}

(() => {
  const sums = JOULES.map((row) => row.reduce((a, b) => a + b, 0));
  const total = sums.reduce((a, b) => a + b, 0), overhead = sums[2] + sums[3] + sums[4];
  const bar = (heading, parts, whole) => make("div", {}, make("h3", {}, heading, " ", make("b", {}, showJoules(whole))),
    make("div", { class: "bar" }, ...parts.map((p) => make("span", { style: { background: `var(--${PARTS[p]})`, width: `${whole ? (100 * sums[p]) / whole : 0}%` } }))),
    make("div", { class: "parts" }, ...parts.map((p) => make("span", {}, make("i", { style: { background: `var(--${PARTS[p]})` } }),
      `${PART_WORDS[PARTS[p]]} ${showJoules(sums[p])}${whole ? ` (${showShare(sums[p] / whole)})` : ""}`))));
  byId("totals").append(bar("Total:", [0, 1, 2, 3, 4], total));
  if (overhead) byId("totals").append(bar("Overhead:", [2, 3, 4], overhead));
})();

(() => {
  const canvas = byId("energy"), xs = new Range(0, Math.max(N_COLUMNS, 1), 6), area = { x: 62, y: 8, w: 1, h: 1 };
  let rows = [0, 1, 2, 3, 4];
  const [all, over] = tools("energy-tools", [
    ["All", "All energy of the step", () => pick(true)], ["Overhead", "Only recomputes and transfers", () => pick(false)],
  ]);
  function pick(everything) {
    rows = everything ? [0, 1, 2, 3, 4] : [2, 3, 4];
    all.setAttribute("aria-pressed", everything);
    over.setAttribute("aria-pressed", !everything);
    repaint();
  }
  pick(true);
  const X = (c) => area.x + ((c - xs.from) / xs.span) * area.w;
  const height = (c) => rows.reduce((sum, r) => sum + JOULES[r][c], 0);
  painters.push(() => {
    const { g, width, height: tall } = surface(canvas);
    const cw0 = (width - area.x - 10) / xs.span, named = cw0 >= 13;
    area.w = Math.max(width - area.x - 10, 1);
    area.h = Math.max(tall - area.y - (named ? 92 : 22), 1);
    let most = 0;
    for (let c = Math.floor(xs.from); c < Math.min(xs.to, N_COLUMNS); c++) most = Math.max(most, height(c));
    most = (most || 1) * 1.04;
    const scale = area.h / most, cw = area.w / xs.span;
    g.textAlign = "right";
    for (const t of ticks(0, most, 4)) {
      const y = area.y + area.h - t * scale;
      g.strokeStyle = ink.grid;
      g.beginPath(); g.moveTo(area.x, y); g.lineTo(area.x + area.w, y); g.stroke();
      g.fillStyle = ink.soft;
      g.fillText(trimmed(showJoules(t)), area.x - 6, Math.max(y, area.y + 6));
    }
    g.textAlign = "center";
    if (named)
      for (let c = Math.max(0, Math.floor(xs.from)); c < Math.min(N_COLUMNS, xs.to); c++) {
        g.save();
        g.translate(X(c + 0.5), area.y + area.h + 6);
        g.rotate(-Math.PI / 3.2);
        g.textAlign = "right";
        g.fillText(tail(columnName(c), 18), 0, 0);
        g.restore();
      }
    else
      for (const t of ticks(xs.from - INPUTS.length, xs.to - INPUTS.length, area.w / 90))
        if (Number.isInteger(t) && t >= 0 && t < N_OPS) g.fillText(t, X(t + INPUTS.length + 0.5), area.y + area.h + 12);
    g.save();
    g.beginPath(); g.rect(area.x, area.y, area.w, area.h); g.clip();
    const gap = cw > 5 ? 1 : 0;
    for (let c = Math.max(0, Math.floor(xs.from)); c < Math.min(N_COLUMNS, xs.to); c++) {
      let y = area.y + area.h;
      for (const r of rows) {
        const h = JOULES[r][c] * scale;
        if (!h) continue;
        g.fillStyle = ink[PARTS[r]];
        g.fillRect(X(c), y - h, Math.max(cw - gap, 0.8), h);
        y -= h;
      }
    }
    g.globalAlpha = 0.3;
    g.strokeStyle = ink.ink;
    g.beginPath(); g.moveTo(X(state.column + 0.5), area.y); g.lineTo(X(state.column + 0.5), area.y + area.h); g.stroke();
    g.globalAlpha = 1;
    drawSelection(canvas, g, area, false);
    g.restore();
  });
  const choose = (c) => moveTo(c < INPUTS.length ? 0 : FIRST_RUN[c - INPUTS.length], c);
  zoomable(canvas, {
    plot: () => area, xs,
    hover: (at, event) => {
      if (at[0] < area.x || at[0] > area.x + area.w || !N_COLUMNS) { tip(event, ""); return; }
      const c = clamp(Math.floor(xs.from + ((at[0] - area.x) / area.w) * xs.span), 0, N_COLUMNS - 1);
      choose(c);
      const kind = c < INPUTS.length ? "graph input" : OPS.kind[c - INPUTS.length];
      tip(event, [`${columnName(c)}${kind ? ` · ${kind}` : ""}`, ...PARTS.flatMap((part, r) => (JOULES[r][c] ? [`${PART_WORDS[part]} ${showJoules(JOULES[r][c])}`] : []))].join("\n"));
    },
  });
  keyed(canvas, { xs, arrows: (dx, dy) => choose(clamp(state.column + dx + dy, 0, N_COLUMNS - 1)) });
  canvas.keyed = () => { xs.reveal(state.column + 0.5, 1); repaint(); };
  tools("energy-tools", [
    ["−", "Zoom out", () => { xs.zoom(1 / 1.6); repaint(); }],
    ["+", "Zoom in, about the cursor", () => { xs.zoom(1.6, state.column + 0.5); repaint(); }],
    ["Fit", "Show all operators", () => { xs.reset(); repaint(); }],
  ]);
  legend("energy-legend", PARTS.map((part) => [part, PART_WORDS[part]]));
  canvas.setAttribute("aria-label", `Energy of each of ${N_OPS} operators. Left and right move the cursor; the table below sums it by kind.`);
})();
