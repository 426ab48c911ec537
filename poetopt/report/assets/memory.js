// Memory over the step, and where each buffer lies in the arena. Both share the time axis with the lanes.
const time = (() => {
  const end = D.makespan_s || 1;
  const seconds = new Range(0, end, end / 1e5), steps = new Range(0, Math.max(N_STEPS, 1), 6);
  const axis = {
    bySeconds: true,
    left: 62, right: 10,
    get range() { return axis.bySeconds ? seconds : steps; },
    // Where instruction i begins and ends on the axis: as the CPU passes it, or one unit each.
    from: (i) => (i < 0 ? 0 : axis.bySeconds ? STEPS.reached_s[i] : i),
    to: (i) => (axis.bySeconds ? (i + 1 < N_STEPS ? STEPS.reached_s[i + 1] : D.makespan_s) : i + 1),
    at(x) {
      if (!axis.bySeconds) return clamp(Math.floor(x), 0, N_STEPS - 1);
      let low = 0, high = N_STEPS - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (STEPS.reached_s[middle] <= x) low = middle; else high = middle - 1;
      }
      return low;
    },
    show: (x) => (axis.bySeconds ? trimmed(showSeconds(x)) : String(x)),
  };
  // Zooming must act on whichever range is in use.
  axis.proxy = new Proxy({}, {
    get: (_, key) => { const value = axis.range[key]; return typeof value === "function" ? value.bind(axis.range) : value; },
  });
  const [bySeconds, bySteps] = tools("time-tools", [
    ["Time", "Axis in seconds", () => pick(true)], ["Order", "Axis in instructions, all of the same width", () => pick(false)],
  ]);
  function pick(choice) {
    axis.bySeconds = choice;
    bySeconds.setAttribute("aria-pressed", choice);
    bySteps.setAttribute("aria-pressed", !choice);
    repaint();
  }
  pick(true);
  tools("time-tools", [
    ["−", "Zoom out", () => { axis.range.zoom(1 / 1.6); repaint(); }],
    ["+", "Zoom in, about the cursor", () => { axis.range.zoom(1.6, axis.from(state.step)); repaint(); }],
    ["Fit", "Show all", () => { axis.range.reset(); repaint(); }],
  ]);
  return axis;
})();

function timeChart(canvas, bottom, hoverWords) {
  const area = { x: time.left, y: 8, w: 1, h: 1 };
  const X = (x) => area.x + ((x - time.range.from) / time.range.span) * area.w;
  zoomable(canvas, {
    plot: () => area, xs: time.proxy,
    hover: (at, event) => {
      if (!N_STEPS || at[0] < area.x || at[0] > area.x + area.w) { tip(event, ""); return; }
      const x = time.range.from + ((at[0] - area.x) / area.w) * time.range.span;
      const found = hoverWords(x, at[1], area, (area.w ? time.range.span / area.w : 0));
      if (found.step !== undefined) moveTo(found.step);
      tip(event, found.text);
    },
  });
  keyed(canvas, { xs: time.proxy, arrows: (dx, dy) => moveTo(state.step + dx + dy) });
  canvas.keyed = () => { time.range.reveal(time.from(state.step)); repaint(); };
  const frame = (height, width) => { area.w = Math.max(width - area.x - time.right, 1); area.h = Math.max(height - area.y - bottom, 1); };
  const clip = (g) => { g.save(); g.beginPath(); g.rect(area.x, area.y, area.w, area.h); g.clip(); };
  function axisLabels(g, title) {
    g.fillStyle = ink.soft;
    g.textAlign = "center";
    for (const t of ticks(time.range.from, time.range.to, area.w / 110)) g.fillText(time.show(t), clamp(X(t), area.x + 8, area.x + area.w - 14), area.y + area.h + 12);
    if (title) { g.textAlign = "right"; g.fillText(title, area.x + area.w, area.y + area.h + 26); }
  }
  function cursor(g) {
    if (!N_STEPS) return;
    const x = X((time.from(state.step) + time.to(state.step)) / 2);
    g.globalAlpha = 0.6;
    g.strokeStyle = ink.ink;
    g.beginPath(); g.moveTo(x, area.y); g.lineTo(x, area.y + area.h); g.stroke();
    g.globalAlpha = 1;
  }
  return { area, X, frame, clip, axisLabels, cursor };
}

function byteAxis(g, area, most, scale) {
  g.textAlign = "right";
  for (const t of ticks(0, most, 4)) {
    const y = area.y + area.h - t * scale;
    g.strokeStyle = ink.grid;
    g.beginPath(); g.moveTo(area.x, y); g.lineTo(area.x + area.w, y); g.stroke();
    g.fillStyle = ink.soft;
    g.fillText(trimmed(showBytes(t)), area.x - 6, Math.max(y, area.y + 6));
  }
}

// The curve of store-all, stage by stage: each stage is as wide as in this schedule.
function drawStoreAll(g, chart, scale, live) {
  const { area, X } = chart, foot = area.y + area.h;
  g.beginPath();
  g.moveTo(X(0), foot);
  for (let i = 0; i < N_STEPS; i++) {
    const y = foot - (live[STEPS.stage[i]] ?? 0) * scale;
    g.lineTo(X(time.from(i)), y);
    g.lineTo(X(time.to(i)), y);
  }
  g.lineTo(X(time.to(N_STEPS - 1)), foot);
  g.closePath();
  g.fillStyle = ink.ordinary;
  g.fill();
  g.strokeStyle = ink.wait;
  g.stroke();
}

// The most that is live in each column of pixels, so that no peak is too short to be seen.
function eachColumn(chart, pixel, visit) {
  const { area } = chart, columns = Math.ceil(area.w / pixel), per = time.range.span / columns;
  let i = time.at(time.range.from);
  for (let c = 0; c < columns; c++) {
    const x1 = time.range.from + (c + 1) * per;
    let best = i;
    while (i + 1 < N_STEPS && time.from(i + 1) < x1) { i++; if (STEPS.live_bytes[i] > STEPS.live_bytes[best]) best = i; }
    visit(area.x + c * pixel, best);
  }
}

(() => {
  const STORE_ALL = D.store_all_live_bytes, storeAllPeak = STORE_ALL.reduce((most, x) => Math.max(most, x), 0);
  // Store-all is drawn if it differs; a budget far above all curves is named, not drawn.
  let withStoreAll = storeAllPeak > D.peak_bytes;
  const curves = () => Math.max(D.peak_bytes, withStoreAll ? storeAllPeak : 0, 1);
  const roomy = () => D.budget_bytes > ROOMY * curves();
  const most = () => Math.max(roomy() ? 0 : (D.budget_bytes ?? 0), curves()) * 1.06;
  const canvas = byId("memory");
  const chart = timeChart(canvas, 20, (x, y, area, per) => {
    let step = time.at(x);
    // Under the pointer's pixel, the instruction with most in RAM.
    for (let i = time.at(x - per); i < N_STEPS && time.from(i) <= x + per; i++)
      if (STEPS.live_bytes[i] > STEPS.live_bytes[step]) step = i;
    const largest = livingAt(step).slice(0, 8).map((k) => `  ${showBytes(BUFFERS.bytes[k])}  ${shorten(bufferName(k))}`);
    const share = D.budget_bytes ? `, ${showShare(STEPS.live_bytes[step] / D.budget_bytes)} of the budget` : "";
    const beside = withStoreAll ? [`store-all ${showBytes(STORE_ALL[STEPS.stage[step]] ?? 0)}`] : [];
    return { step, text: [`${showSeconds(STEPS.start_s[step])}: ${stepWords(step)}`, `${showBytes(STEPS.live_bytes[step])}${share}`, ...beside, ...largest].join("\n") };
  });
  painters.push(() => {
    const { g, width, height, pixel } = surface(canvas), { area } = chart;
    chart.frame(height, width);
    const scale = area.h / most();
    byteAxis(g, area, most(), scale);
    chart.axisLabels(g);
    if (!N_STEPS) return;
    chart.clip(g);
    if (withStoreAll) drawStoreAll(g, chart, scale, STORE_ALL);
    STACK.forEach((kind, s) => {
      g.fillStyle = ink[kind];
      g.beginPath();
      eachColumn(chart, pixel, (x, i) => {
        let below = 0;
        for (let k = 0; k < s; k++) below += STACKED[k][i];
        if (STACKED[s][i]) g.rect(x, area.y + area.h - (below + STACKED[s][i]) * scale, pixel, STACKED[s][i] * scale);
      });
      g.fill();
    });
    if (D.budget_bytes && !roomy()) {
      const y = area.y + area.h - D.budget_bytes * scale;
      g.strokeStyle = ink.budget;
      g.lineWidth = 1.5;
      g.beginPath(); g.moveTo(area.x, y); g.lineTo(area.x + area.w, y); g.stroke();
      g.lineWidth = 1;
    }
    chart.cursor(g);
    drawSelection(canvas, g, area, false);
    g.restore();
  });
  const used = STACK.filter((kind, s) => STACKED[s].some((x) => x > 0));
  function words() {
    const budget = `budget ${showBytes(D.budget_bytes ?? 0)}${roomy() ? ", above the chart" : ""}`;
    legend("memory-legend", [...used.map((kind) => [kind, BUFFER_WORDS[kind]]), ...(D.budget_bytes ? [["budget", budget, true]] : []),
      ...(withStoreAll ? [["wait", `store-all, up to ${showBytes(storeAllPeak)}`]] : [])]);
  }
  words();
  if (withStoreAll) {
    const [shown] = tools("time-tools", [["Store-all", "RAM of ordinary training (store-all) while the same operator runs", () => {
      withStoreAll = !withStoreAll;
      shown.setAttribute("aria-pressed", withStoreAll);
      words();
      repaint();
    }]]);
    shown.setAttribute("aria-pressed", true);
  }
  canvas.setAttribute("aria-label", `Memory over time: at most ${showBytes(D.peak_bytes)}`
    + (D.budget_bytes ? ` of a budget of ${showBytes(D.budget_bytes)}.` : ".") + " Left and right move the cursor.");
})();

(() => {
  if (D.arena_bytes === null) { byId("arena-part").remove(); return; }
  const canvas = byId("arena"), most = Math.max(D.arena_bytes, 1);
  const chart = timeChart(canvas, 20, (x, y, area, per) => {
    const byte = ((area.y + area.h - y) / area.h) * most;
    let hit = -1;
    for (let k = 0; k < BUFFERS.index.length; k++) {
      const inside = BUFFERS.offset[k] <= byte && byte < BUFFERS.offset[k] + BUFFERS.bytes[k];
      if (inside && time.from(BUFFERS.first[k]) <= x + per && x - per <= time.to(BUFFERS.last[k])) hit = k;
    }
    if (hit < 0) return { step: time.at(x), text: "" };
    const last = BUFFERS.offset[hit] + BUFFERS.bytes[hit];
    return {
      step: clamp(time.at(x), Math.max(BUFFERS.first[hit], 0), BUFFERS.last[hit]),
      text: [bufferName(hit), `${since(hit)}`, `${showBytes(BUFFERS.bytes[hit])}: bytes ${BUFFERS.offset[hit].toLocaleString("en")} to ${last.toLocaleString("en")}`].join("\n"),
    };
  });
  painters.push(() => {
    const { g, width, height } = surface(canvas), { area, X } = chart;
    chart.frame(height, width);
    const scale = area.h / most;
    byteAxis(g, area, most, scale);
    chart.axisLabels(g);
    if (!N_STEPS) return;
    chart.clip(g);
    for (let k = 0; k < BUFFERS.index.length; k++) {
      const x0 = X(time.from(BUFFERS.first[k])), x1 = X(time.to(BUFFERS.last[k]));
      if (!BUFFERS.bytes[k] || x1 < area.x || x0 > area.x + area.w) continue;
      const w = Math.max(x1 - x0, 0.8), h = BUFFERS.bytes[k] * scale, y = area.y + area.h - (BUFFERS.offset[k] * scale) - h;
      g.fillStyle = ink[BUFFER_KIND[k]];
      g.fillRect(x0, y, w, h);
      if (w > 3 && h > 5) { g.strokeStyle = ink.card; g.strokeRect(x0 + 0.5, y + 0.5, w - 1, Math.max(h - 1, 0)); }
      if (w > 60 && h > 12) {
        g.fillStyle = ink.ink;
        g.textAlign = "left";
        const left = Math.max(x0, area.x), room = Math.floor((Math.min(x1, area.x + area.w) - left - 8) / 6.2);
        if (room >= Math.min(bufferName(k).length, 12)) g.fillText(tail(bufferName(k), room), left + 5, y + h / 2);
      }
    }
    chart.cursor(g);
    drawSelection(canvas, g, area, false);
    g.restore();
  });
  canvas.setAttribute("aria-label", `Layout of the arena of ${showBytes(D.arena_bytes)}: ${count(BUFFERS.index.length, "buffer")}. `
    + "Left and right move the cursor; the panel lists what is in RAM.");
})();
