// How old a page that refreshes itself is. "Updated 5s ago" becomes a warning when updates stop, also
// while a request waits for a server that never answers.
(() => {
  "use strict";
  const MIN_LATE_SECONDS = 15;
  const MISSED_UPDATES = 3;
  const sources = new Map();
  let visibleAt = Date.now();
  let warning = null;

  const age = (at) => Math.round((Date.now() - at) / 1000);
  const isLate = ({ updatedAt, seconds }) => age(Math.max(updatedAt, visibleAt)) > Math.max(MIN_LATE_SECONDS, MISSED_UPDATES * seconds());

  function words(seconds) {
    if (seconds < 60) return `${seconds}s`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)}m` : `${Math.floor(seconds / 3600)}h`;
  }

  function warn(late) {
    if (!late.length) {
      warning?.remove();
      warning = null;
      return;
    }
    if (!warning) {
      warning = document.createElement("div");
      warning.className = "vd-outdated";
      warning.setAttribute("role", "alert");
      document.body.append(warning);
    }
    const text = `Updated ${words(Math.max(...late.map(({ updatedAt }) => age(updatedAt))))} ago. Updates have stopped, so this page is out of date. Trying again…`;
    if (warning.textContent !== text) warning.textContent = text;
  }

  function show() {
    if (document.hidden) return;
    const all = [...sources.values()];
    warn(all.filter(isLate));
    const note = document.querySelector("[data-updated]");
    if (note) note.textContent = all.length ? `Updated ${words(Math.min(...all.map(({ updatedAt }) => age(updatedAt))))} ago` : "";
  }

  document.addEventListener("visibilitychange", () => {
    visibleAt = Date.now();
    show();
  });
  setInterval(show, 1000);

  window.vedetteFreshness = {
    // A part of the page is new now and to be updated every `seconds()`, Infinity for never.
    expect: (name, seconds) => sources.set(name, { updatedAt: Date.now(), seconds }),
    updated(name) {
      sources.get(name).updatedAt = Date.now();
      show();
    },
    end: (name) => sources.delete(name),
  };
})();
