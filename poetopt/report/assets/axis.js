// One dimension that can be zoomed, ticks for it, and the mouse and keys that zoom it.
class Range {
  constructor(low, high, least) { Object.assign(this, { low, high, least, from: low, to: high }); }
  get span() { return this.to - this.from; }
  get whole() { return this.from <= this.low && this.to >= this.high; }
  reset() { this.from = this.low; this.to = this.high; }
  show(from, to) {
    const span = clamp(to - from, Math.min(this.least, this.high - this.low), this.high - this.low);
    const middle = (from + to) / 2;
    this.from = clamp(middle - span / 2, this.low, this.high - span);
    this.to = this.from + span;
  }
  zoom(factor, at = (this.from + this.to) / 2) { this.show(at - (at - this.from) / factor, at + (this.to - at) / factor); }
  move(by) { this.show(this.from + by, this.to + by); }
  reveal(x, margin = 0) {
    if (x - margin < this.from) this.move(x - margin - this.from);
    else if (x + margin > this.to) this.move(x + margin - this.to);
  }
}

function ticks(from, to, most) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const raw = span / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.9999);
  const found = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) found.push(k * step);
  return found;
}

// Dragging selects a box to zoom into (or moves, with shift); `plot()` says where the plot is in CSS pixels.
function zoomable(canvas, { plot, xs, ys, hover, leave, press }) {
  let start = null;
  canvas.selection = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const toRange = (range, pixel, origin, size) => range.from + ((pixel - origin) / size) * range.span;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return;
    start = { at: place(event), last: place(event), moving: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = place(event), area = plot();
    if (!start) { hover(at, event); return; }
    tip(event, "");
    if (start.moving) {
      xs.move(((start.last[0] - at[0]) / area.w) * xs.span);
      if (ys) ys.move(((start.last[1] - at[1]) / area.h) * ys.span);
    } else canvas.selection = [...start.at, ...at];
    start.last = at;
    repaint();
  });
  const end = (event) => {
    if (!start) return;
    const at = place(event), area = plot(), from = start.at, moved = Math.hypot(at[0] - from[0], at[1] - from[1]) > 5;
    if (!start.moving && moved) {
      const [x0, x1] = [Math.min(at[0], from[0]), Math.max(at[0], from[0])].map((x) => toRange(xs, x, area.x, area.w));
      const [y0, y1] = ys ? [Math.min(at[1], from[1]), Math.max(at[1], from[1])].map((y) => toRange(ys, y, area.y, area.h)) : [];
      xs.show(x0, x1);
      if (ys) ys.show(y0, y1);
    } else if (!moved && press) press(at, event);
    start = canvas.selection = null;
    repaint();
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", () => { start = canvas.selection = null; repaint(); });
  canvas.addEventListener("pointerleave", (event) => { if (!start) { tip(event, ""); leave?.(); } });
  canvas.addEventListener("click", (event) => { if (event.pointerType === "touch") { hover(place(event), event); press?.(place(event), event); } });
  canvas.addEventListener("dblclick", () => { xs.reset(); ys?.reset(); repaint(); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = place(event), area = plot(), factor = Math.exp(-event.deltaY / 300);
    xs.zoom(factor, toRange(xs, at[0], area.x, area.w));
    if (ys) ys.zoom(factor, toRange(ys, at[1], area.y, area.h));
    repaint();
  }, { passive: false });
}

function drawSelection(canvas, g, area, bothWays) {
  if (!canvas.selection) return;
  const [x0, y0, x1, y1] = canvas.selection;
  const top = bothWays ? Math.min(y0, y1) : area.y, height = bothWays ? Math.abs(y1 - y0) : area.h;
  g.save();
  g.globalAlpha = 0.16;
  g.fillStyle = ink.accent;
  g.fillRect(Math.min(x0, x1), top, Math.abs(x1 - x0), height);
  g.globalAlpha = 1;
  g.strokeStyle = ink.accent;
  g.strokeRect(Math.min(x0, x1), top, Math.abs(x1 - x0), height);
  g.restore();
}

// Keys that all charts have; `arrows` gets (dx, dy) in units of one, or of ten with shift.
function keyed(canvas, { xs, ys, arrows }) {
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const many = event.shiftKey ? 10 : 1;
    const zoom = (factor) => { xs.zoom(factor); ys?.zoom(factor); repaint(); };
    const act = {
      ArrowLeft: () => arrows(-many, 0), ArrowRight: () => arrows(many, 0),
      ArrowUp: () => arrows(0, -many), ArrowDown: () => arrows(0, many),
      Home: () => moveTo(0), End: () => moveTo(N_STEPS - 1),
      n: () => nextEvent(true), N: () => nextEvent(true), p: () => nextEvent(false), P: () => nextEvent(false),
      "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6), "−": () => zoom(1 / 1.6),
      0: () => { xs.reset(); ys?.reset(); repaint(); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    tip(event, "");
    act();
    canvas.keyed?.();
  });
}
