// What applies before the first paint: the theme that the user chose, or the system's; the time zone of
// the browser, in which a page is unless its user has chosen another.
(() => {
  "use strict";
  const KEY = "vedette-theme";
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  }

  function apply() {
    const theme = chosen() || (system.matches ? "dark" : "light");
    document.documentElement.setAttribute("data-bs-theme", theme);
  }

  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  window.vedetteTheme = {
    toggle() {
      const now = document.documentElement.getAttribute("data-bs-theme");
      try {
        localStorage.setItem(KEY, now === "dark" ? "light" : "dark");
      } catch {
        document.documentElement.setAttribute("data-bs-theme", now === "dark" ? "light" : "dark");
        return;
      }
      apply();
    },
  };
})();

(() => {
  "use strict";
  const NAMES = ["year", "month", "day", "hour", "minute", "second"];
  const browserZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const { dataset } = document.documentElement;
  const formats = {};

  // What the clock of a zone shows, as texts: `{ year: "2026", month: "03", … }`.
  function wallParts(zone, time) {
    const digits = Object.fromEntries(NAMES.map((name) => [name, name === "year" ? "numeric" : "2-digit"]));
    formats[zone] ||= new Intl.DateTimeFormat("en-US", { ...digits, timeZone: zone, hourCycle: "h23" });
    return Object.fromEntries(formats[zone].formatToParts(time).map(({ type, value }) => [type, value]));
  }

  // By how many milliseconds the clock of a zone is ahead of UTC.
  function offsetAt(zone, time) {
    if (Number.isNaN(time)) return NaN;
    const { year, month, day, hour, minute, second } = wallParts(zone, time);
    return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(time / 1000) * 1000;
  }

  // In the page's time zone, such as `18:48:20`.
  function timeOfDay(text) {
    return new Date(text).toLocaleTimeString("en-US", { timeZone: dataset.zone, hourCycle: "h23" });
  }

  window.vedetteZone = { browserZone, offsetAt, timeOfDay, wallParts };
  if (dataset.browserZone === browserZone) return;
  document.cookie = `vedette-zone=${browserZone};path=/;max-age=31536000;samesite=lax`;
  // The page is in a zone that the browser has left, or in UTC before its first visit.
  if (dataset.followsBrowser !== undefined && document.cookie.includes("vedette-zone=")) location.reload();
})();
