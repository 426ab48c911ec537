// The schedule as in the paper's Figure 2: operators across, stages down.
const matrix = (() => {
  const canvas = byId("matrix");
  const xs = new Range(0, Math.max(N_COLUMNS, 1), 6), ys = new Range(0, Math.max(N_OPS, 1), 6);
  const area = { x: 0, y: 0, w: 1, h: 1 };
  const NAMED = 13, TILT = Math.PI / 3.2;

  // Residence: one bar a buffer, from the stage that makes it to the stage that frees it. Parked: the stages on storage.
  const bars = [], parked = [], cells = new Map();
  for (let k = 0; k < BUFFERS.index.length; k++) {
    if (BUFFERS.workspace[k]) continue;
    const first = BUFFERS.first[k], last = BUFFERS.last[k];
    bars.push([columnOfTensor(BUFFERS.index[k]), first < 0 ? 0 : STEPS.stage[first], STEPS.stage[last] ?? 0]);
  }
  const written = new Map();
  for (let i = 0; i < N_STEPS; i++) {
    const action = STEPS.action[i];
    if (action === FREE) continue;
    const column = columnOf(i), stage = STEPS.stage[i], key = stage * N_COLUMNS + column;
    if (!cells.has(key)) cells.set(key, []);
    cells.get(key).push(i);
    if (action === PAGE_OUT) written.set(STEPS.target[i], stage);
    if (action === PAGE_IN && written.has(STEPS.target[i])) {
      parked.push([column, written.get(STEPS.target[i]), stage]);
      written.set(STEPS.target[i], stage);
    }
  }
  const loud = (i) => STEPS.again[i] === 1 || STEPS.action[i] !== COMPUTE;

  const X = (column) => area.x + ((column - xs.from) / xs.span) * area.w;
  const Y = (stage) => area.y + ((stage - ys.from) / ys.span) * area.h;

  // How far the tilted names of the last columns reach beyond them, in pixels.
  function overhang(g, room) {
    let most = 8;
    for (let c = Math.min(N_COLUMNS, Math.ceil(xs.to)) - 1; c >= Math.max(0, xs.from); c--)
      most = Math.max(most, g.measureText(tail(columnName(c), 20)).width * Math.cos(TILT) + 8 - (xs.to - c - 0.5) * (room / xs.span));
    return Math.min(most, room / 3);
  }

  function layout(g, width, height) {
    const wide = width / xs.span >= NAMED, tall = height / ys.span >= NAMED;
    area.x = tall ? 150 : 44;
    area.y = wide ? 116 : 24;
    area.w = Math.max(width - area.x - (wide ? overhang(g, width - area.x) : 8), 1);
    area.h = Math.max(height - area.y - 8, 1);
    return { wide: area.w / xs.span >= NAMED - 1, tall: area.h / ys.span >= NAMED - 1 };
  }

  function labels(g, { wide, tall }) {
    g.fillStyle = ink.soft;
    g.textAlign = "center";
    if (wide) {
      for (let c = Math.max(0, Math.floor(xs.from)); c < Math.min(N_COLUMNS, xs.to); c++) {
        const x = X(c + 0.5);
        if (x < area.x || x > area.x + area.w) continue;
        g.save();
        g.translate(x, area.y - 5);
        g.rotate(-TILT);
        g.textAlign = "left";
        g.fillText(tail(columnName(c), 20), 0, 0);
        g.restore();
      }
    } else
      for (const t of ticks(xs.from - INPUTS.length, xs.to - INPUTS.length, area.w / 90))
        if (Number.isInteger(t) && t >= 0 && t < N_OPS) g.fillText(t, X(t + INPUTS.length + 0.5), area.y - 10);
    g.textAlign = "right";
    if (tall) {
      for (let t = Math.max(0, Math.floor(ys.from)); t < Math.min(N_OPS, ys.to); t++) {
        const y = Y(t + 0.5);
        if (y > area.y && y < area.y + area.h) g.fillText(`${tail(OPS.name[t], 18)}  ${t}`, area.x - 6, y);
      }
    } else
      for (const t of ticks(ys.from, ys.to, area.h / 45))
        if (Number.isInteger(t) && t < N_OPS) g.fillText(t, area.x - 7, Y(t + 0.5));
  }

  function paint() {
    const { g, width, height, pixel } = surface(canvas);
    const named = layout(g, width, height);
    labels(g, named);
    g.save();
    g.beginPath();
    g.rect(area.x, area.y, area.w, area.h);
    g.clip();
    g.fillStyle = ink.shade;
    g.globalAlpha = 0.55;
    g.fillRect(area.x, area.y, area.w, area.h);
    g.globalAlpha = 1;
    const cw = area.w / xs.span, ch = area.h / ys.span, gap = cw > 5 && ch > 5 ? 1 : 0;
    if (cw >= 9 && ch >= 9) grid(g);
    g.fillStyle = ink.resident;
    for (const [column, from, to] of bars) {
      const x = X(column), y = Y(from);
      if (x + cw < area.x || x > area.x + area.w) continue;
      g.fillRect(x, y, Math.max(cw - gap, pixel), Math.max((to - from + 1) * ch - gap, pixel));
    }
    g.fillStyle = ink.storage;
    for (const [column, from, to] of parked) {
      const w = Math.max(Math.min(cw * 0.2, 3), 1.2);
      g.fillRect(X(column + 0.5) - w / 2, Y(from + 0.5), w, (to - from) * ch);
    }
    boundary(g);
    // Quiet cells first, so that what the schedule adds lies on top and can be seen however small a cell is.
    for (const wanted of [false, true])
      for (const [key, steps] of cells) {
        const column = key % N_COLUMNS, stage = Math.floor(key / N_COLUMNS);
        const x = X(column), y = Y(stage);
        if (x + cw < area.x - 4 || x > area.x + area.w + 4 || y + ch < area.y - 4 || y > area.y + area.h + 4) continue;
        const own = steps.filter((i) => loud(i) === wanted);
        if (!own.length) continue;
        const least = wanted ? 3.4 : 1.6, w = Math.max(cw - gap, least), h = Math.max(ch - gap, least);
        const whole = cw >= 6 ? steps : own;
        own.forEach((i) => {
          g.fillStyle = stepColour(i);
          const part = w / whole.length, place = whole.indexOf(i);
          g.fillRect(x + (cw - gap - w) / 2 + part * place, y + (ch - gap - h) / 2, part, h);
        });
      }
    cursor(g, cw, ch);
    drawSelection(canvas, g, area, true);
    g.restore();
    g.strokeStyle = ink.line;
    g.strokeRect(area.x + 0.5, area.y + 0.5, area.w - 1, area.h - 1);
  }

  function grid(g) {
    g.strokeStyle = ink.grid;
    g.beginPath();
    for (let c = Math.ceil(xs.from); c <= xs.to; c++) { g.moveTo(X(c) - 0.5, area.y); g.lineTo(X(c) - 0.5, area.y + area.h); }
    for (let t = Math.ceil(ys.from); t <= ys.to; t++) { g.moveTo(area.x, Y(t) - 0.5); g.lineTo(area.x + area.w, Y(t) - 0.5); }
    g.stroke();
  }

  function boundary(g) {
    if (D.last_forward < 0 || D.last_forward >= N_OPS - 1) return;
    const x = X(INPUTS.length + D.last_forward + 1), y = Y(D.last_forward + 1);
    g.strokeStyle = ink.soft;
    g.setLineDash([4, 4]);
    g.beginPath();
    g.moveTo(x, area.y); g.lineTo(x, area.y + area.h);
    g.moveTo(area.x, y); g.lineTo(area.x + area.w, y);
    g.stroke();
    g.setLineDash([]);
    g.fillStyle = ink.soft;
    g.textAlign = "left";
    g.fillText("backward →", x + 6, area.y + 10);
    g.textAlign = "right";
    g.fillText("← forward", x - 6, area.y + 10);
  }

  function cursor(g, cw, ch) {
    if (!N_STEPS) return;
    const x = X(state.column), y = Y(STEPS.stage[state.step]);
    g.save();
    g.globalAlpha = 0.55;
    g.strokeStyle = ink.ink;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(x + cw / 2, area.y); g.lineTo(x + cw / 2, y - 3);
    g.moveTo(x + cw / 2, y + ch + 3); g.lineTo(x + cw / 2, area.y + area.h);
    g.moveTo(area.x, y + ch / 2); g.lineTo(x - 3, y + ch / 2);
    g.moveTo(x + cw + 3, y + ch / 2); g.lineTo(area.x + area.w, y + ch / 2);
    g.globalAlpha = 0.35;
    g.stroke();
    g.globalAlpha = 1;
    g.lineWidth = 1.5;
    g.strokeRect(x - 2, y - 2, cw + 4, ch + 4);
    g.restore();
  }

  function cellAt([px, py]) {
    if (px < area.x || py < area.y || px > area.x + area.w || py > area.y + area.h) return null;
    const column = clamp(Math.floor(xs.from + ((px - area.x) / area.w) * xs.span), 0, N_COLUMNS - 1);
    const stage = clamp(Math.floor(ys.from + ((py - area.y) / area.h) * ys.span), 0, N_OPS - 1);
    // At a cell of a pixel, what the schedule adds nearby is meant.
    const reach = [3 / (area.w / xs.span), 3 / (area.h / ys.span)].map((r) => Math.min(Math.floor(r), 6));
    let best = null;
    for (let ds = -reach[1]; ds <= reach[1]; ds++)
      for (let dc = -reach[0]; dc <= reach[0]; dc++) {
        const c = column + dc, s = stage + ds;
        if (c < 0 || c >= N_COLUMNS || s < 0 || s >= N_OPS) continue;
        if (!cells.get(s * N_COLUMNS + c)?.some(loud)) continue;
        const far = dc * dc + ds * ds;
        if (!best || far < best[2]) best = [c, s, far];
      }
    return best ? [best[0], best[1]] : [column, stage];
  }

  function words(column, stage) {
    const operator = column - INPUTS.length, steps = cells.get(stage * N_COLUMNS + column) ?? [];
    const kind = operator < 0 ? "graph input" : OPS.kind[operator];
    const lines = [`${columnName(column)}${kind ? ` · ${kind}` : ""}`, `in stage ${stage} (${OPS.name[stage]})`];
    for (const i of steps) lines.push(`• ${stepWords(i)}`);
    if (!steps.length) {
      const from = stage ? FIRST_RUN[stage - 1] + 1 : 0, to = FIRST_RUN[stage];
      const held = columnTensors(column).filter((tensor) => BUFFERS.index.some((index, k) =>
        !BUFFERS.workspace[k] && index === tensor && BUFFERS.first[k] <= to && BUFFERS.last[k] >= from));
      lines.push(held.length ? `in RAM: ${held.map((i) => `${TENSORS.name[i]} (${showBytes(TENSORS.bytes[i])})`).join(", ")}`
        : columnTensors(column).length ? "not in RAM" : "writes no scheduled tensor");
    }
    return lines.join("\n");
  }

  const stepOf = (column, stage) => {
    const steps = cells.get(stage * N_COLUMNS + column);
    return steps ? steps.find(loud) ?? steps[0] : FIRST_RUN[stage];
  };
  const choose = (column, stage) => moveTo(stepOf(column, stage), column);

  zoomable(canvas, {
    plot: () => area, xs, ys,
    hover: (at, event) => {
      const cell = cellAt(at);
      tip(event, cell ? words(...cell) : "");
      if (cell) choose(...cell);
    },
  });
  keyed(canvas, {
    xs, ys,
    arrows: (dx, dy) => choose(clamp(state.column + dx, 0, N_COLUMNS - 1), clamp(STEPS.stage[state.step] + dy, 0, N_OPS - 1)),
  });
  canvas.keyed = () => { xs.reveal(state.column + 0.5, 1); ys.reveal((STEPS.stage[state.step] ?? 0) + 0.5, 1); repaint(); };
  tools("matrix-tools", [
    ["−", "Zoom out", () => { xs.zoom(1 / 1.6); ys.zoom(1 / 1.6); repaint(); }],
    ["+", "Zoom in, about the cursor", () => { xs.zoom(1.6, state.column + 0.5); ys.zoom(1.6, STEPS.stage[state.step] + 0.5); repaint(); }],
    ["Fit", "Show all", () => { xs.reset(); ys.reset(); repaint(); }],
  ]);
  legend("matrix-legend", [["forward", "compute"], ["backward", "backward"], ["recompute", "recompute"], ["page_out", "page out"],
    ["page_in", "page in"], ["resident", "in RAM"], ["storage", "on storage", true]]);
  canvas.setAttribute("aria-label", `Schedule of ${N_OPS} operators in as many stages: ${EVENTS.length} recomputes and `
    + "transfers, which the keys N and P visit; the panel At the cursor describes each.");
  painters.push(paint);
  // Bring a cell to the middle of a view in which single cells can be told apart.
  return { focus(step) {
    const w = Math.min(48, N_COLUMNS), c = columnOf(step) + 0.5, s = STEPS.stage[step] + 0.5;
    xs.show(c - w / 2, c + w / 2);
    ys.show(s - w / 3.2, s + w / 3.2);
    moveTo(step);
    canvas.focus({ preventScroll: true });
    byId("schedule").scrollIntoView({ block: "start" });
  } };
})();
