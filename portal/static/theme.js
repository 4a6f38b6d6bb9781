// Applies the theme before the first paint: the user's choice, or the system's.
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
