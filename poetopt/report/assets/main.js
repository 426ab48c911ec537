// Theme, first position, first drawing.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)"), choices = ["auto", "light", "dark"];
  let choice = "auto";
  const apply = () => {
    const dark = choice === "dark" || (choice === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
    byId("theme").textContent = `Theme: ${choice}`;
    readColours();
    repaint();
  };
  byId("theme").addEventListener("click", () => { choice = choices[(choices.indexOf(choice) + 1) % 3]; apply(); });
  system.addEventListener("change", apply);
  new ResizeObserver(repaint).observe(document.querySelector("main"));
  apply();
  if (N_STEPS) moveTo(EVENTS[0] ?? STEPS.live_bytes.indexOf(Math.max(...STEPS.live_bytes)));
})();
