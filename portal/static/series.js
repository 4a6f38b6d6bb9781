// Draws the series of a rule: of the form that has the element, while a user edits it, or of an
// alert. The server returns the picture in the width of its place.
(() => {
  "use strict";
  const { api, repeat } = window.vedette;
  const TYPING_MS = 400;
  const SLOW_MS = 4000;

  function show(place, text) {
    const note = Object.assign(document.createElement("p"), { className: "vd-panel-note", textContent: text });
    place.replaceChildren(note);
  }

  function follow(place) {
    const form = place.hasAttribute("data-of-form") ? place.closest("form") : null;
    let running = null;
    let timer = null;
    let width = 0;

    async function draw() {
      clearTimeout(timer);
      running?.abort();
      const own = new AbortController();
      running = own;
      place.setAttribute("aria-busy", "true");
      const slow = setTimeout(() => {
        if (!place.querySelector("svg")) show(place, "Still loading the series. A long window over many series takes a while.");
      }, SLOW_MS);
      if (!place.firstElementChild) show(place, "Loading the series…");
      width = place.clientWidth;
      try {
        const options = form ? { method: "POST", body: new FormData(form) } : {};
        const answer = await api(`${place.dataset.series}?width=${width}`, { ...options, signal: own.signal, headers: { Accept: "text/html" } });
        if (answer.status === 401) return show(place, "You are signed out. Sign in to see the series.");
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        place.innerHTML = await answer.text();
        const retry = place.querySelector("[data-retry]");
        if (retry) reloadAfter(Number(retry.dataset.retry) * 1000);
      } catch (error) {
        if (error.name === "AbortError") return;
        show(place, "The series could not be loaded. Trying again…");
        reloadAfter(SLOW_MS);
      } finally {
        clearTimeout(slow);
        if (running === own) place.removeAttribute("aria-busy");
      }
    }

    function reloadAfter(milliseconds) {
      clearTimeout(timer);
      timer = setTimeout(draw, milliseconds);
    }

    form?.addEventListener("input", () => reloadAfter(TYPING_MS));
    if (place.dataset.seconds) repeat(Number(place.dataset.seconds), async () => (place.firstElementChild ? draw() : undefined));
    new ResizeObserver(() => {
      if (Math.abs(place.clientWidth - width) > 8) reloadAfter(width ? TYPING_MS : 0);
    }).observe(place);
  }

  document.querySelectorAll("[data-series]").forEach(follow);
})();
