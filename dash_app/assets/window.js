"use strict";

// Dragging over a chart selects a time window for all charts of the page, stored in the address; a
// double click leaves it. Charts with their own time axis (.has-own-time) only zoom.
(() => {
  const connected = new WeakSet();
  const followed = new WeakSet();

  // Rows of heat maps and bars of timelines lead to a GPU, a job, an alert.
  function follow(href) {
    const { pathname, search } = new URL(href, window.location.href);
    if (!pathname.startsWith("/dashboards/")) return window.location.assign(href);
    window.dash_clientside.set_props("url", { pathname, search });
  }

  function setWindow(from, to) {
    const params = new URLSearchParams(window.location.search);
    const before = params.toString();
    for (const [name, value] of Object.entries({ from, to })) {
      value === undefined ? params.delete(name) : params.set(name, value);
    }
    if (params.toString() !== before) {
      window.dash_clientside.set_props("url", { search: `?${params}` });
    }
  }

  // Plotly gives UTC, as `2026-11-21 20:20:13.5`, or milliseconds.
  function milliseconds(instant) {
    return Math.round(typeof instant === "number" ? instant : Date.parse(`${String(instant).replace(" ", "T")}Z`));
  }

  function select(change) {
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const [from, to] = range.map(milliseconds);
    if (!Number.isNaN(from) && !Number.isNaN(to)) setWindow(Math.max(0, from), to);
  }

  function connect() {
    for (const chart of document.querySelectorAll(".vdd-panel:not(.has-own-time) .js-plotly-plot")) {
      if (connected.has(chart) || !chart.on) continue;
      connected.add(chart);
      chart.on("plotly_relayout", select);
      chart.on("plotly_doubleclick", () => setWindow());
    }
    for (const chart of document.querySelectorAll(".js-plotly-plot")) {
      if (followed.has(chart) || !chart.on) continue;
      followed.add(chart);
      chart.on("plotly_click", ({ points: [point] }) => {
        const href = chart.layout.meta?.links?.[point.y] || (point.data.type === "bar" && point.customdata);
        if (href) follow(href);
      });
    }
  }

  new MutationObserver(connect).observe(document.documentElement, { subtree: true, childList: true });
})();
