// The page of one job: follows its log, and draws what it uses.
(() => {
  "use strict";
  const { api, repeat } = window.vedette;

  // Colours and cursor moves of terminals are left out; a carriage return begins its line again.
  const ANSI = /[\u001b\u009b](?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[[()#;?]*(?:\d{1,4}(?:;\d{0,4})*)?[\dA-PR-TZcf-nq-uy=><~])/g;
  const MAX_CHARACTERS = 1_000_000;

  function startLog(panel) {
    const text = panel.querySelector("[data-log-text]");
    const state = panel.querySelector("[data-log-state]");
    const following = panel.querySelector("[data-log-follow]");
    const node = document.createTextNode("");
    text.append(node);
    let offset = 0;
    let attempt = null;
    let line = "";

    function write(piece) {
      // The last line is drawn again with each piece: more of it may come, or replace it.
      const lines = (line + piece.replace(ANSI, "").replace(/\r\n/g, "\n")).split("\n");
      const shown = lines.map((one) => one.slice(one.lastIndexOf("\r", one.length - 2) + 1).replace(/\r$/, ""));
      node.deleteData(node.length - (node.lastLine || 0), node.lastLine || 0);
      node.appendData(shown.join("\n"));
      line = lines[lines.length - 1];
      node.lastLine = shown[shown.length - 1].length;
      if (node.length > MAX_CHARACTERS) node.deleteData(0, node.length - MAX_CHARACTERS);
    }

    text.addEventListener("wheel", (event) => {
      if (event.deltaY < 0) following.checked = false;
    }, { passive: true });
    following.addEventListener("change", () => {
      if (following.checked) text.scrollTop = text.scrollHeight;
    });

    repeat(1, async () => {
      for (;;) {
        const answer = await api(`${panel.dataset.log}?offset=${offset}`);
        if (answer.status === 401) {
          state.textContent = "Signed out";
          return true;
        }
        if (!answer.ok) {
          state.textContent = "The portal does not answer; trying again";
          throw new Error(`status ${answer.status}`);
        }
        const page = await answer.json();
        if (attempt !== null && attempt !== page.attempt_number && page.attempt_number) {
          // A new attempt begins a new log.
          attempt = page.attempt_number;
          offset = 0;
          line = "";
          node.data = "";
          node.lastLine = 0;
          continue;
        }
        if (page.attempt_number) attempt = page.attempt_number;
        if (page.text) {
          write(page.text);
          if (following.checked) text.scrollTop = text.scrollHeight;
        }
        const isRead = page.next_offset === offset;
        offset = page.next_offset;
        text.classList.toggle("vd-terminal-empty", offset === 0);
        if (page.is_complete) {
          state.textContent = offset ? "Complete" : "The job wrote nothing";
          return true;
        }
        state.textContent = attempt ? (offset ? "Live" : "Nothing written yet") : "Waits for an appliance";
        if (isRead) return false;
      }
    });
  }

  const LABELS = {
    cpu_percent: "CPU", memory_bytes: "Memory", utilization_percent: "GPU use",
    memory_used_bytes: "GPU memory", power_watts: "Power", temperature_celsius: "Temperature",
  };
  const FULL = { utilization_percent: 100 };

  function pretty(field, value) {
    if (!field.endsWith("_bytes")) {
      const unit = { percent: "%", watts: "W", celsius: "°C" }[field.split("_").pop()] || "";
      return `${value.toFixed(value >= 100 || Number.isInteger(value) ? 0 : 1)} ${unit}`;
    }
    let step = 0;
    while (value >= 1024 && step < 4) {
      value /= 1024;
      step += 1;
    }
    return `${value.toFixed(value >= 100 ? 0 : 1)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
  }

  function spark(lines, field) {
    const NS = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", "0 0 200 40");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    const times = lines.flatMap((one) => one.times_ms);
    const first = Math.min(...times);
    const width = Math.max(1, Math.max(...times) - first);
    const top = FULL[field] || Math.max(1e-9, ...lines.flatMap((one) => one.values)) * 1.15;
    lines.forEach((one, index) => {
      const points = one.values.map((value, at) => `${((one.times_ms[at] - first) / width * 200).toFixed(1)},${(39 - value / top * 38).toFixed(1)}`);
      if (points.length === 1) points.push(`200,${points[0].split(",")[1]}`);
      const path = document.createElementNS(NS, "polyline");
      path.setAttribute("points", points.join(" "));
      path.setAttribute("class", `vd-line vd-line-${index % 4}`);
      svg.append(path);
    });
    return svg;
  }

  function tile(field, lines) {
    const box = document.createElement("div");
    box.className = "vd-tile";
    const head = document.createElement("div");
    head.className = "vd-tile-head";
    const name = document.createElement("span");
    const gpus = lines.filter((one) => one.gpu !== "");
    name.textContent = LABELS[field];
    const value = document.createElement("strong");
    const latest = lines.map((one) => one.values[one.values.length - 1]);
    const isMean = field.endsWith("percent") || field.endsWith("celsius");
    const total = latest.reduce((sum, one) => sum + one, 0);
    value.textContent = pretty(field, isMean ? total / latest.length : total);
    if (gpus.length > 1) {
      const note = document.createElement("small");
      note.textContent = isMean ? `mean of ${gpus.length}` : `on ${gpus.length}`;
      value.append(note);
    }
    head.append(name, value);
    box.append(head, spark(lines, field));
    return box;
  }

  function startUsage(panel) {
    const charts = panel.querySelector("[data-usage-charts]");
    let isLast = panel.dataset.usageOnce !== undefined;
    document.addEventListener("vedette:final", () => { isLast = true; });
    repeat(4, async () => {
      const stop = isLast;
      const answer = await api(panel.dataset.usage);
      if (answer.status === 401) return true;
      if (!answer.ok) {
        charts.textContent = "The time series do not answer; trying again.";
        throw new Error(`status ${answer.status}`);
      }
      const { series } = await answer.json();
      const fields = Object.keys(LABELS).filter((field) => series.some((one) => one.field === field));
      if (fields.length) {
        charts.replaceChildren(...fields.map((field) => tile(field, series.filter((one) => one.field === field))));
      } else {
        const note = document.createElement("p");
        note.className = "vd-panel-note mb-0";
        note.textContent = stop ? "No samples of this job." : "Figures show up here once the job runs.";
        charts.replaceChildren(note);
      }
      return stop;
    });
  }

  document.querySelectorAll("[data-log]").forEach(startLog);
  document.querySelectorAll("[data-usage]").forEach(startUsage);
})();
