"use strict";

// Dragging over a chart shows that stretch of time in every chart of the page, and names it in the
// address; a double click goes back to the range that moves on. Charts that have a time of their
// own (.is-apart), and pages without a time range, keep the zoom to themselves.
(() => {
  const followed = new WeakSet();

  function search(change) {
    const params = new URLSearchParams(window.location.search);
    const before = params.toString();
    change(params);
    if (params.toString() !== before) {
      window.dash_clientside.set_props("url", { search: `?${params}` });
    }
  }

  // Plotly tells instants in UTC, as `2026-11-21 20:20:13.5`, or in milliseconds.
  function milliseconds(instant) {
    return Math.round(typeof instant === "number" ? instant : Date.parse(`${String(instant).replace(" ", "T")}Z`));
  }

  function take(change) {
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const [from, to] = range.map(milliseconds);
    if (Number.isNaN(from) || Number.isNaN(to)) return;
    search((params) => {
      params.set("from", Math.max(0, from));
      params.set("to", to);
    });
  }

  function leave() {
    search((params) => {
      params.delete("from");
      params.delete("to");
    });
  }

  function hasRange() {
    return document.getElementById("range-box")?.classList.contains("d-none") === false;
  }

  function follow() {
    for (const chart of document.querySelectorAll(".vdd-panel:not(.is-apart) .js-plotly-plot")) {
      if (followed.has(chart) || !chart.on) continue;
      followed.add(chart);
      chart.on("plotly_relayout", (change) => hasRange() && take(change));
      chart.on("plotly_doubleclick", () => hasRange() && leave());
    }
  }

  new MutationObserver(follow).observe(document.documentElement, { subtree: true, childList: true });
})();
