"use strict";

// The time window in the address. Dragging over a chart selects one for all charts of the page, a
// double click leaves it; the toolbar's buttons move and widen it. Charts with their own time axis
// (.has-own-time) only zoom.
(() => {
  const connected = new WeakSet();
  const followed = new WeakSet();
  const UNITS = { m: 60, h: 3600, d: 86400, w: 604800 };

  // Rows of heat maps and bars of timelines lead to a GPU, a job, an alert.
  function follow(href) {
    const { pathname, search } = new URL(href, window.location.href);
    if (!pathname.startsWith("/dashboards/")) return window.location.assign(href);
    window.dash_clientside.set_props("url", { pathname, search });
  }

  function setParams(changes) {
    const params = new URLSearchParams(window.location.search);
    const before = params.toString();
    for (const [name, value] of Object.entries(changes)) {
      value === undefined ? params.delete(name) : params.set(name, value);
    }
    if (params.toString() === before) return;
    params.delete("page");
    window.dash_clientside.set_props("url", { search: `?${params}` });
  }

  const { browserZone, offsetAt, wallParts } = window.vedetteZone;
  const zone = () => document.querySelector(".vdd-toolbar")?.dataset.zone || document.documentElement.dataset.zone;

  // Charts have texts such as `2026-11-21 20:20:13.5`: the instant, moved by one offset for the whole axis.
  function milliseconds(chart, text) {
    return Math.round(Date.parse(`${String(text).replace(" ", "T")}Z`) - (chart.layout.meta?.offset_ms || 0));
  }

  // `2026-11-21T20:20:13+05:30`
  function local(time) {
    const { year, month, day, hour, minute, second } = wallParts(zone(), time);
    const offset = offsetAt(zone(), time) / 60000;
    const [hours, minutes] = [Math.abs(offset) / 60, Math.abs(offset) % 60].map((part) => String(Math.floor(part)).padStart(2, "0"));
    return `${year}-${month}-${day}T${hour}:${minute}:${second}${offset < 0 ? "-" : "+"}${hours}:${minutes}`;
  }

  function select(chart, change) {
    const range = change["xaxis.range"] || [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    const [from, to] = range.map((text) => milliseconds(chart, text));
    if (!Number.isNaN(from) && !Number.isNaN(to)) setParams({ from: Math.max(0, from), to });
  }

  function shown() {
    const params = new URLSearchParams(window.location.search);
    const [from, to] = ["from", "to"].map((name) => Number(params.get(name)));
    if (from && to) return [from, to];
    const seconds = Number(document.querySelector(".vdd-toolbar")?.dataset.rangeSeconds || 3600);
    const now = Date.now();
    return [now - seconds * 1000, now];
  }

  function move(share) {
    const [from, to] = shown();
    const shift = Math.min(Math.round((to - from) * share), Math.max(0, Date.now() - to) || (share < 0 ? Infinity : 0));
    if (shift) setParams({ from: from + shift, to: to + shift });
  }

  const actions = {
    back: () => move(-1),
    forward: () => move(1),
    out() {
      const [from, to] = shown();
      const half = Math.round((to - from) / 2);
      setParams({ from: Math.max(0, from - half), to: Math.min(to + half, Math.max(to, Date.now())) });
    },
    now: () => window.dash_clientside.set_props("tick", { n_intervals: Date.now() }),
    zone: () => setParams({ tz: browserZone }),
    kiosk() {
      const isKiosk = new URLSearchParams(window.location.search).get("kiosk") === "1";
      setParams({ kiosk: isKiosk ? undefined : "1" });
    },
  };
  window.vedetteTime = { ...actions, local, milliseconds };

  // `2026-11-22 08:00` in the page's time zone, or `now-6h`.
  function instant(text, now) {
    const relative = /^now(?:-(\d+)([mhdw]))?$/.exec(text.trim());
    if (relative) return now - (Number(relative[1]) || 0) * (UNITS[relative[2]] || 0) * 1000;
    const wall = Date.parse(`${text.trim().replace(" ", "T")}Z`);
    return wall - offsetAt(zone(), wall - offsetAt(zone(), wall));
  }

  document.addEventListener("submit", (event) => {
    const form = event.target.closest(".vdd-absolute");
    if (!form) return;
    event.preventDefault();
    const inputs = [...form.querySelectorAll("input")];
    const now = Date.now();
    const times = inputs.map((input) => instant(input.value || (input.id.endsWith("to") ? "now" : ""), now));
    const isWrong = [Number.isNaN(times[0]), !(times[0] < times[1])];
    const message = "Write a time such as 2026-11-22 08:00 or now-6h. The first must be before the second.";
    inputs.forEach((input, index) => input.setCustomValidity(isWrong[index] ? message : ""));
    if (!form.reportValidity()) return;
    setParams({ from: Math.round(times[0]), to: Math.round(times[1]) });
  });

  document.addEventListener("input", (event) => {
    if (event.target.closest(".vdd-absolute")) event.target.setCustomValidity("");
  });

  document.addEventListener("click", (event) => {
    actions[event.target.closest("[data-vdd-time]")?.dataset.vddTime]?.();
    // Dash follows the links of a menu without loading a page, so the menu stays open.
    const item = event.target.closest(".vdd-menu .dropdown-item");
    if (item) window.bootstrap?.Dropdown.getInstance(item.closest(".vdd-menu").previousElementSibling)?.hide();
  });

  // A new address rebuilds the toolbar: a menu opened before the answer stays open.
  let openMenu = "";
  document.addEventListener("shown.bs.dropdown", (event) => { openMenu = event.target.id; });
  document.addEventListener("hide.bs.dropdown", () => { openMenu = ""; });

  const closed = new WeakSet();

  function connect() {
    const toggle = openMenu && document.getElementById(openMenu);
    if (toggle && !toggle.classList.contains("show")) window.bootstrap.Dropdown.getOrCreateInstance(toggle).show();
    // On a phone, the first card comes before the filters.
    const filters = document.getElementById("fleet-filters");
    if (filters && !closed.has(filters)) {
      closed.add(filters);
      if (window.innerWidth < 576) filters.open = false;
    }
    document.body?.classList.toggle("vdd-kiosk", new URLSearchParams(window.location.search).get("kiosk") === "1");
    for (const chart of document.querySelectorAll(".js-plotly-plot")) {
      if (followed.has(chart) || !chart.on) continue;
      followed.add(chart);
      chart.on("plotly_click", ({ points: [point] }) => {
        const href = chart.layout.meta?.links?.[point.y] || (point.data.type === "bar" && point.customdata);
        if (href) follow(href);
      });
    }
    for (const chart of document.querySelectorAll(".vdd-panel:not(.has-own-time) .js-plotly-plot")) {
      if (connected.has(chart) || !chart.on) continue;
      connected.add(chart);
      chart.on("plotly_relayout", (change) => select(chart, change));
      chart.on("plotly_doubleclick", () => setParams({ from: undefined, to: undefined }));
    }
  }

  new MutationObserver(connect).observe(document.documentElement, { subtree: true, childList: true });
})();
