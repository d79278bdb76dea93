// Keyboard navigation, copying, and live updates. The pages work without it.
"use strict";
(() => {
  const visible = (element) => element.offsetParent !== null;
  const items = () => [...document.querySelectorAll("[data-nav]")].filter(visible);
  let here = -1;

  function move(step) {
    const all = items();
    if (!all.length) return;
    const current = all.findIndex((each) => each.classList.contains("here"));
    here = Math.min(Math.max((current < 0 ? -1 : current) + step, 0), all.length - 1);
    all.forEach((each) => each.classList.remove("here"));
    const target = all[here];
    target.classList.add("here");
    const focus = target.querySelector("a, summary") || target;
    focus.focus({ preventScroll: true });
    target.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const help = document.getElementById("help");
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") document.querySelector("[data-search]")?.focus();
    else if (event.key === "?" && help) help.open ? help.close() : help.showModal();
    else return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      navigator.clipboard.writeText(copy.dataset.copy).then(() => { copy.textContent = "Copied"; }, () => { copy.textContent = "Select it"; });
    }
    if (event.target.closest("[data-help]")) document.getElementById("help").showModal();
  });

  // Replace the content of the page, and keep the position and open details.
  let busy = false;
  async function refresh() {
    if (busy) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", headers: { "X-Refresh": "yes" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      const main = document.getElementById("main");
      if (!answer.ok || !fresh || main.contains(document.activeElement?.closest("form"))) return;
      const open = [...main.querySelectorAll("details")].map((each) => each.open);
      main.replaceChildren(...fresh.childNodes);
      [...main.querySelectorAll("details")].forEach((each, n) => { if (open[n]) each.open = true; });
      window.htmx?.process(main);
      start();
    } finally {
      busy = false;
    }
  }

  let stream = null, again = 0;
  function start() {
    const live = document.querySelector("[data-live]");
    if (live && !stream) {
      stream = new EventSource(live.dataset.live);
      stream.addEventListener("change", refresh);
      stream.addEventListener("end", () => { stream.close(); stream = null; });
    }
    if (document.querySelector("[data-refresh]")) {
      clearTimeout(again);
      again = setTimeout(refresh, 700);
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
