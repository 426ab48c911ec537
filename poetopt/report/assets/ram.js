// The device's RAM: what the schedule may take of it, and the resident region beside that.
(() => {
  const taken = D.budget_bytes ?? D.peak_bytes, wanted = D.resident_bytes + taken, room = D.device_ram_bytes;
  if (room === null && !D.resident_bytes) { byId("ram").remove(); return; }
  const most = Math.max(room ?? 0, wanted, 1), over = room === null ? 0 : Math.max(wanted - room, 0);
  const used = Math.min(D.peak_bytes, taken), parts = [
    ["fixed", "resident (parameters, their gradients, state)", D.resident_bytes],
    ["activation", "schedule's peak", used],
    ["resident", "left of the budget", taken - used],
    ["shade", "left of the RAM", room === null ? 0 : Math.max(room - wanted, 0)],
  ].filter(([, , bytes]) => bytes > 0);
  const heading = room === null ? ["RAM in all:", showBytes(wanted)] : [`RAM of ${D.device}:`, showBytes(room)];
  const bar = make("div", { class: "bar" }, ...parts.map(([colour, , bytes]) =>
    make("span", { style: { background: `var(--${colour})`, width: `${(100 * bytes) / most}%` } })));
  if (over) bar.append(make("i", { class: "end", style: { left: `${(100 * room) / most}%` } }));
  byId("ram").append(make("div", {}, make("h3", {}, heading[0], " ", make("b", {}, heading[1])), bar,
    make("div", { class: "parts" }, ...parts.map(([colour, words, bytes]) =>
      make("span", {}, make("i", { style: { background: `var(--${colour})` } }), `${words} ${showBytes(bytes)} (${showShare(bytes / (room ?? wanted))})`)),
      ...(over ? [make("span", { class: "over" }, `${showBytes(over)} more than ${D.device} has`)] : []))));
})();
