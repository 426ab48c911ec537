// Tables: kinds of operators, recomputed operators, paged tensors. A heading sorts; a name leads to its cell.
function fillTable(id, columns, rows, empty) {
  const table = byId(id);
  if (!rows.length) { table.replaceChildren(make("tbody", {}, make("tr", {}, make("td", { class: "empty" }, empty)))); return; }
  let sorted = null, descending = false;
  const body = make("tbody");
  const draw = () => {
    const order = rows.map((_, k) => k);
    if (sorted !== null) {
      const key = columns[sorted].key;
      order.sort((a, b) => {
        const [x, y] = [key(rows[a]), key(rows[b])];
        const sign = typeof x === "string" ? x.localeCompare(y) : x - y;
        return (descending ? -sign : sign) || a - b;
      });
    }
    body.replaceChildren(...order.map((k) => make("tr", {}, ...columns.map((column) =>
      make("td", { class: column.class ?? "" }, ...[column.cell(rows[k])].flat())))));
    [...heads].forEach((head, c) => head.setAttribute("aria-sort", sorted !== c ? "none" : descending ? "descending" : "ascending"));
    filterTables();
  };
  const heads = columns.map((column, c) => make("th", { class: column.class === "num" ? "num" : "", scope: "col" },
    make("button", { type: "button", title: "Sort", onclick: () => {
      descending = sorted === c ? !descending : column.class === "num";
      sorted = c;
      draw();
    } }, column.title)));
  table.replaceChildren(make("thead", {}, make("tr", {}, ...heads)), body);
  draw();
}

function filterTables() {
  const wanted = byId("find").value.trim().toLowerCase();
  for (const id of ["recomputed", "paged"])
    for (const row of byId(id).querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}
byId("find").addEventListener("input", filterTables);

const goTo = (text, step) => make("button", { type: "button", class: "go", title: "Show it in the schedule", onclick: () => matrix.focus(step) }, text);
const stageList = (steps) => {
  const links = steps.slice(0, 12).flatMap((i) => [goTo(String(STEPS.stage[i]), i), " "]);
  return steps.length > 12 ? [...links, `and ${steps.length - 12} more`] : links;
};

(() => {
  const groups = new Map();
  for (let k = 0; k < N_OPS; k++) {
    const kind = OPS.kind[k] || (OPS.backward[k] ? "backward" : "forward");
    if (!groups.has(kind)) groups.set(kind, { kind, count: 0, time: 0, parts: PARTS.map(() => 0), all: 0 });
    const group = groups.get(kind);
    group.count++;
    group.time += OPS.time_s[k];
    PARTS.forEach((_, r) => { group.parts[r] += JOULES[r][INPUTS.length + k]; group.all += JOULES[r][INPUTS.length + k]; });
  }
  const rows = [...groups.values()].sort((a, b) => b.all - a.all), most = Math.max(...rows.map((r) => r.all), Number.MIN_VALUE);
  const over = (r) => r.parts[2] + r.parts[3] + r.parts[4];
  fillTable("kinds", [
    { title: "Kind", class: "name", key: (r) => r.kind, cell: (r) => r.kind },
    { title: "Operators", class: "num", key: (r) => r.count, cell: (r) => String(r.count) },
    { title: "Energy", class: "num", key: (r) => r.all, cell: (r) => showJoules(r.all) },
    { title: "Overhead", class: "num", key: over, cell: (r) => (over(r) ? showJoules(over(r)) : "") },
    { title: "", key: (r) => r.all, cell: (r) => PARTS.map((part, p) => make("span", { class: "cell", style: { background: `var(--${part})`, width: `${(260 * r.parts[p]) / most}px`, display: r.parts[p] ? "inline-block" : "none" } })) },
  ], rows, "The plan has no operators.");

  const bytes = (tensors) => tensors.reduce((sum, i) => sum + TENSORS.bytes[i], 0);
  fillTable("recomputed", [
    { title: "Operator", class: "name", key: (r) => r.operator, cell: (r) => goTo(OPS.name[r.operator], r.steps[0]) },
    { title: "Kind", key: (r) => OPS.kind[r.operator], cell: (r) => OPS.kind[r.operator] },
    { title: "Tensors", class: "name", key: (r) => OPS.outputs[r.operator].map((i) => TENSORS.name[i]).join(), cell: (r) => OPS.outputs[r.operator].map((i) => TENSORS.name[i]).join(", ") },
    { title: "Size", class: "num", key: (r) => bytes(OPS.outputs[r.operator]), cell: (r) => showBytes(bytes(OPS.outputs[r.operator])) },
    { title: "Times", class: "num", key: (r) => r.steps.length, cell: (r) => String(r.steps.length) },
    { title: "Energy", class: "num", key: (r) => r.energy_j, cell: (r) => showJoules(r.energy_j) },
    { title: "In stages", key: (r) => STEPS.stage[r.steps[0]], cell: (r) => stageList(r.steps) },
  ], D.recomputed, "Nothing is computed twice.");
  fillTable("paged", [
    { title: "Tensor", class: "name", key: (r) => r.tensor, cell: (r) => goTo(TENSORS.name[r.tensor], r.outs[0] ?? r.ins[0]) },
    { title: "Written by", class: "name", key: (r) => TENSORS.producer[r.tensor], cell: (r) => (TENSORS.producer[r.tensor] < 0 ? "graph input" : OPS.name[TENSORS.producer[r.tensor]]) },
    { title: "Size", class: "num", key: (r) => TENSORS.bytes[r.tensor], cell: (r) => showBytes(TENSORS.bytes[r.tensor]) },
    { title: "Out, in", class: "num", key: (r) => r.outs.length + r.ins.length, cell: (r) => `${r.outs.length}, ${r.ins.length}` },
    { title: "Energy", class: "num", key: (r) => r.energy_j, cell: (r) => showJoules(r.energy_j) },
    { title: "Out in stages", key: (r) => STEPS.stage[r.outs[0]] ?? -1, cell: (r) => stageList(r.outs) },
    { title: "In in stages", key: (r) => STEPS.stage[r.ins[0]] ?? -1, cell: (r) => stageList(r.ins) },
  ], D.paged, "Nothing goes to storage.");
  const runs = D.recomputed.reduce((sum, r) => sum + r.steps.length, 0);
  byId("recomputed-title").textContent = `Recomputed: ${count(D.recomputed.length, "operator")}, ${count(runs, "time")} in all`;
  byId("paged-title").textContent = `Paged: ${count(D.paged.length, "tensor")}`;
})();
