// The CPU and the transfer channel: who works when, and who waits for whom.
(() => {
  const canvas = byId("lanes"), ROW = 34, SPACE = 10, LANES = ["CPU", "transfers"];
  const sliceFrom = (k) => (time.bySeconds ? SLICES.start_s[k] : SLICES.step[k]);
  const sliceTo = (k) => (time.bySeconds ? SLICES.end_s[k] : SLICES.step[k] + 1);
  const skipped = (k) => !time.bySeconds && KINDS[SLICES.kind[k]] === "wait";
  const top = (area, lane) => area.y + lane * (ROW + SPACE);

  function words(k) {
    const step = SLICES.step[k], cause = SLICES.cause[k];
    const seconds = showSeconds(SLICES.end_s[k] - SLICES.start_s[k]);
    if (KINDS[SLICES.kind[k]] !== "wait") return `${stepWords(step)}\n${seconds}, from ${showSeconds(SLICES.start_s[k])}`;
    return step === cause ? `${stepWords(step)}\nby the CPU itself, ${seconds}`
      : `the CPU waits ${seconds} for: ${stepWords(cause)}\nbefore it can ${stepWords(step)}`;
  }
  const chart = timeChart(canvas, 22, (x, y, area, per) => {
    const lane = y < area.y + ROW + SPACE / 2 ? 0 : 1;
    let hit = -1, far = Infinity;
    for (let k = 0; k < SLICES.step.length; k++) {
      if (SLICES.lane[k] !== lane || skipped(k)) continue;
      const away = Math.max(sliceFrom(k) - x, x - sliceTo(k), 0);
      if (away < far && away <= 2 * per) { far = away; hit = k; }
    }
    return hit < 0 ? { step: time.at(x), text: "" } : { step: SLICES.step[hit], text: words(hit) };
  });
  painters.push(() => {
    const { g, width, height } = surface(canvas), { area, X } = chart;
    chart.frame(height, width);
    chart.axisLabels(g);
    g.textAlign = "right";
    LANES.forEach((name, lane) => {
      g.fillStyle = ink.soft;
      g.fillText(name, area.x - 6, top(area, lane) + ROW / 2);
      g.fillStyle = ink.shade;
      g.fillRect(area.x, top(area, lane), area.w, ROW);
    });
    chart.clip(g);
    for (let k = 0; k < SLICES.step.length; k++) {
      const x0 = X(sliceFrom(k)), x1 = X(sliceTo(k)), kind = KINDS[SLICES.kind[k]];
      if (skipped(k) || x1 < area.x || x0 > area.x + area.w) continue;
      const y = top(area, SLICES.lane[k]), w = Math.max(x1 - x0, 0.6);
      g.fillStyle = ink[kind];
      if (kind === "wait") {
        g.globalAlpha = 0.5;
        g.fillRect(x0, y + ROW / 2 - 4, w, 8);
        g.globalAlpha = 1;
        continue;
      }
      g.fillRect(x0, y, w, ROW);
      if (w > 4) { g.fillStyle = ink.card; g.fillRect(x1 - 0.5, y, 0.5, ROW); }
      if (w > 70) {
        const left = Math.max(x0, area.x), room = Math.floor((Math.min(x1, area.x + area.w) - left - 8) / 6.2);
        const name = SLICES.lane[k] ? TENSORS.name[STEPS.target[SLICES.step[k]]] : OPS.name[STEPS.target[SLICES.step[k]]];
        g.fillStyle = ink.paper;
        g.textAlign = "left";
        if (room >= Math.min(name.length, 12)) g.fillText(tail(name, room), left + 5, y + ROW / 2);
      }
    }
    if (time.bySeconds && D.deadline_s !== null) {
      g.fillStyle = ink.budget;
      g.fillRect(X(D.deadline_s) - 1, area.y, 2, area.h);
    }
    chart.cursor(g);
    drawSelection(canvas, g, area, false);
    g.restore();
  });
  const sum = (kind) => SLICES.kind.reduce((s, k, i) => (KINDS[k] === kind ? s + SLICES.end_s[i] - SLICES.start_s[i] : s), 0);
  const shown = KINDS.filter((kind) => SLICES.kind.includes(KINDS.indexOf(kind)));
  const text = { forward: "forward", backward: "backward", recompute: "recompute", page_out: "page out", page_in: "page in", wait: D.dma ? "wait" : "busy with a transfer" };
  legend("lanes-legend", [...shown.map((kind) => [kind, `${text[kind]} ${showSeconds(sum(kind))}`, kind === "wait"]), ...(D.deadline_s !== null ? [["budget", `deadline ${showSeconds(D.deadline_s)}`, true]] : [])]);
  byId("lanes-lead").textContent = D.dma
    ? "Transfers run on their own channel beside the CPU, one after another; the CPU waits for tensors that have not arrived."
    : "This device has no DMA: the CPU makes the transfers itself, between computes.";
  canvas.setAttribute("aria-label", `Timeline of the CPU and of transfers over ${showSeconds(D.makespan_s)}. Left and right move the cursor.`);
})();
