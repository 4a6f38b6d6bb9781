"use strict";

// Panels: a legend with figures below each chart, a crosshair through all of them, and the menu's
// full screen, CSV and PNG.
(() => {
  const UNLISTED = new Set(["events", "clock"]);
  const connected = new WeakSet();

  function element(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  // A line has several traces: its parts between gaps, and the area between its extremes.
  const lineOf = (trace) => trace.legendgroup || trace.name;

  function tracesOf(chart, name) {
    return (chart.data || []).flatMap((trace, index) => (lineOf(trace) === name ? [index] : []));
  }

  function lightUp(chart, name) {
    const chosen = name === null ? null : new Set(tracesOf(chart, name));
    for (const drawn of chart.querySelectorAll(".scatterlayer > .trace")) {
      const index = drawn.__data__?.[0]?.trace?.index;
      drawn.style.opacity = chosen === null || chosen.has(index) ? "" : "0.15";
    }
  }

  // Plotly forgets after each refresh which lines a script has hidden. Another revision is another view.
  const hiddenByChart = new WeakMap();

  function hiddenLinesOf(chart) {
    const { uirevision: revision } = chart.layout;
    const hidden = hiddenByChart.get(chart);
    if (hidden && hidden.revision === revision) return hidden.names;
    const names = new Set();
    hiddenByChart.set(chart, { revision, names });
    return names;
  }

  // Returns whether the chart is drawn again.
  function applyHidden(chart) {
    const names = hiddenLinesOf(chart);
    const visibilityOf = (trace) => (names.has(lineOf(trace)) ? "legendonly" : true);
    const changed = chart.data.flatMap((trace, index) => ((trace.visible ?? true) === visibilityOf(trace) ? [] : [index]));
    if (changed.length) window.Plotly.restyle(chart, { visible: changed.map((index) => visibilityOf(chart.data[index])) }, changed);
    return changed.length > 0;
  }

  function toggle(chart, name) {
    const names = hiddenLinesOf(chart);
    if (!names.delete(name)) names.add(name);
    applyHidden(chart);
  }

  function keyOf(color, style) {
    const key = element("i", "", `vdd-key ${style}`);
    key.style.setProperty("--vdd-line", color);
    return key;
  }

  // What the colors of a heat map stand for.
  function scaleOf(ends) {
    if (!ends.length) return [];
    const bar = element("div", "", "vdd-scale");
    bar.append(element("span", ends[0]), element("i"), element("span", ends[1]));
    return [bar];
  }

  function threshold({ name, color }) {
    const label = element("div", name, "vdd-threshold");
    label.prepend(keyOf(color, "is-dashed"));
    return label;
  }

  function row(chart, line) {
    const tableRow = element("tr");
    const name = element("button", line.name || "value");
    const key = keyOf(line.color, line.is_dotted ? "is-dotted" : "");
    name.type = "button";
    name.prepend(key);
    name.title = "Show or hide this line";
    name.addEventListener("click", () => toggle(chart, line.name));
    const head = element("th");
    head.scope = "row";
    head.append(name);
    tableRow.append(head, ...line.stats.map((text) => element("td", text)));
    const traces = tracesOf(chart, line.name);
    tableRow.classList.toggle("is-hidden", chart.data[traces[0]]?.visible === "legendonly");
    for (const type of ["pointerenter", "focusin"]) tableRow.addEventListener(type, () => lightUp(chart, line.name));
    for (const type of ["pointerleave", "focusout"]) tableRow.addEventListener(type, () => lightUp(chart, null));
    return tableRow;
  }

  function writeLegend(chart) {
    const place = chart.closest(".vdd-panel")?.querySelector(".vdd-legend");
    if (!place) return;
    const { legend: lines = [], headings = [], thresholds = [], scale = [], note = "", min_height: height } = chart.layout?.meta || {};
    chart.closest(".vdd-graph").style.minHeight = height ? `${height}px` : "";
    const key = JSON.stringify([lines, headings, thresholds, scale, note, chart.data?.map((trace) => trace.visible)]);
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    const remark = [...scaleOf(scale), ...thresholds.map(threshold), ...(note ? [element("p", note)] : [])];
    if (!lines.length) return place.replaceChildren(...remark);
    const focused = place.contains(document.activeElement) ? document.activeElement.textContent : null;
    const head = element("tr");
    head.append(...headings.map((text, index) => {
      const heading = element(index ? "th" : "td", text);
      if (index) heading.scope = "col";
      return heading;
    }));
    const table = element("table");
    table.append(head, ...lines.map((line) => row(chart, line)));
    place.replaceChildren(...remark, table);
    if (focused !== null) [...place.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  }

  function closest(chart, event) {
    const { yaxis } = chart._fullLayout;
    const height = event.event.offsetY - yaxis._offset;
    const distance = ({ y }) => Math.abs(yaxis.d2p(y) - height);
    return event.points.filter((point) => point.y !== null).sort((point, nextPoint) => distance(point) - distance(nextPoint))[0];
  }

  function cross(source, time) {
    for (const chart of document.querySelectorAll(".vdd-panel .js-plotly-plot")) {
      const axis = chart._fullLayout?.xaxis;
      let line = chart.querySelector(":scope > .vdd-crosshair");
      const isDrawn = time !== null && chart !== source && axis?.type === "date" && chart.data.length;
      if (!isDrawn) {
        line?.remove();
        continue;
      }
      const at = axis.d2p(time);
      if (!line) {
        line = element("div", "", "vdd-crosshair");
        chart.append(line);
      }
      line.hidden = at < 0 || at > axis._length;
      line.style.left = `${axis._offset + at}px`;
    }
  }

  function connect() {
    for (const chart of document.querySelectorAll(".vdd-panel .js-plotly-plot")) {
      if (connected.has(chart) || !chart.on) continue;
      connected.add(chart);
      writeLegend(chart);
      chart.on("plotly_afterplot", () => applyHidden(chart) || writeLegend(chart));
      chart.on("plotly_hover", (event) => {
        cross(chart, event.points[0].x);
        if ((chart.layout.meta?.legend || []).length < 3) return;
        const point = closest(chart, event);
        if (point) lightUp(chart, lineOf(point.data));
      });
      chart.on("plotly_unhover", () => {
        cross(chart, null);
        lightUp(chart, null);
      });
    }
  }

  function download(blob, name) {
    const link = element("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // One row for each time, with its offset from UTC, one column for each line; text can't start a formula.
  function csv(chart) {
    const { meta = {} } = chart.layout;
    const columns = new Map();
    const rows = new Map();
    const add = (name, time, value) => {
      if (value === null || value === undefined) return;
      if (!columns.has(name)) columns.set(name, columns.size);
      const key = window.vedetteTime.milliseconds(chart, time);
      if (!rows.has(key)) rows.set(key, []);
      rows.get(key)[columns.get(name)] = value;
    };
    const withUnit = (name) => (meta.unit ? `${name} (${meta.unit})` : name);
    for (const trace of chart.data) {
      if (trace.type === "heatmap") {
        trace.y.forEach((name, at) => trace.x.forEach((time, column) => add(withUnit(name), time, trace.z[at][column])));
      } else if (trace.orientation === "h" && trace.base) {
        trace.base.forEach((time, at) => add(trace.y[at], time, trace.hovertext[at]));
      } else if (trace.hoverinfo !== "skip" && !UNLISTED.has(trace.name)) {
        trace.x.forEach((time, at) => add(withUnit(trace.name), time, trace.y[at]));
      }
    }
    const lines = [["time", ...columns.keys()]];
    for (const time of [...rows.keys()].sort((earlier, later) => earlier - later)) {
      lines.push([window.vedetteTime.local(time), ...Array.from({ length: columns.size }, (_, at) => rows.get(time)[at])]);
    }
    return rowsOf(lines);
  }

  const cell = (value) => {
    const text = String(value ?? "").replace(/^[=+\-@\t\r](?![\d.])/, "'$&");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const rowsOf = (lines) => lines.map((line) => line.map(cell).join(",")).join("\r\n");

  // A row for each bar, tile or row of a table.
  function ranked(panel, chart) {
    if (chart) {
      const [bars] = chart.data;
      return rowsOf([["series", bars?.name || "value"], ...(bars?.y || []).map((name, at) => [name, bars.x[at]])]);
    }
    const texts = (parent, selector) => [...parent.querySelectorAll(selector)].map((node) => node.textContent);
    const tiles = [...panel.querySelectorAll(".vdd-stat")].map((tile) => texts(tile, ".vdd-stat-label, .vdd-stat-value"));
    return rowsOf([...tiles, ...[...panel.querySelectorAll("tr")].map((line) => texts(line, "th, td"))]);
  }

  const actions = {
    full(panel) {
      panel.classList.toggle("is-full");
      document.body.classList.toggle("vdd-has-full", document.querySelector(".vdd-panel.is-full") !== null);
      window.dispatchEvent(new Event("resize"));
    },
    csv(panel, chart, name) {
      const isRanked = !chart || chart.layout.xaxis?.type !== "date";
      download(new Blob([isRanked ? ranked(panel, chart) : csv(chart), "\r\n"], { type: "text/csv" }), `${name}.csv`);
    },
    async png(panel, chart, name) {
      const style = getComputedStyle(panel);
      const layout = {
        ...chart.layout,
        paper_bgcolor: style.backgroundColor,
        font: { ...chart.layout.font, color: style.color, family: "sans-serif" },
        title: { text: [panel.querySelector("h2").textContent, chart.layout.meta?.zone].filter(Boolean).join(", "), x: 0.02, font: { size: 15 } },
        margin: { l: 60, r: 20, t: 50, b: 40 },
        showlegend: (chart.layout.meta?.legend || []).length > 1,
        // The picture has no legend below it for the names of thresholds and colors.
        shapes: chart.layout.shapes?.map((shape) => (shape.name ? { ...shape, label: { text: shape.name, textposition: "start" } } : shape)),
        meta: undefined,
      };
      const ticksuffix = ` ${chart.layout.meta?.unit || ""}`;
      const data = chart.data.map((trace) => (trace.type === "heatmap" ? { ...trace, showscale: true, colorbar: { ticksuffix } } : trace));
      const url = await window.Plotly.toImage({ data, layout }, { format: "png", width: 1200, height: 500, scale: 2 });
      const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (character) => character.charCodeAt(0));
      download(new Blob([bytes], { type: "image/png" }), `${name}.png`);
    },
  };
  window.vedettePanel = actions;

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-vdd-panel]");
    const panel = button?.closest(".vdd-panel");
    const chart = panel?.querySelector(".js-plotly-plot");
    if (!panel) return;
    const name = `${document.title.replace(/ · Vedette$/, "")} ${panel.querySelector("h2").textContent}`;
    actions[button.dataset.vddPanel](panel, chart, name.replace(/[^\w-]+/g, "-").toLowerCase());
  });

  new MutationObserver(connect).observe(document.documentElement, { subtree: true, childList: true });
})();
