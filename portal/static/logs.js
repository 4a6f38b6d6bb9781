// The search of logs: counts over time that are brushed, live tail, and lines around a line.
(() => {
  "use strict";
  const { api, repeat } = window.vedette;
  const TAIL_SECONDS = 3;
  const MAX_LINES = 2000;
  const LEVELS = ["critical", "error", "warning", "info", "debug"];
  const HEIGHT = 100;
  const SVG = "http://www.w3.org/2000/svg";

  function drawn(name, attributes, parent) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent?.append(node);
    return node;
  }

  function addressOf(startMs, endMs) {
    const url = new URL(location.href);
    for (const name of ["range", "after"]) url.searchParams.delete(name);
    url.searchParams.set("since", new Date(startMs).toISOString());
    url.searchParams.set("until", new Date(endMs).toISOString());
    return url;
  }

  // With the day, where the range is longer than one.
  function timeText(ms, spanMs) {
    const { month, day, hour, minute, second } = window.vedetteZone.wallParts(document.documentElement.dataset.zone, ms);
    return spanMs > 43_200_000 ? `${month}-${day} ${hour}:${minute}` : `${hour}:${minute}:${second}`;
  }

  function drawHistogram(place, answer) {
    const startMs = Date.parse(answer.start);
    const stepMs = answer.step_seconds * 1000;
    const counts = Object.fromEntries(answer.levels.map(({ level, counts: each }) => [level, each]));
    const size = answer.levels[0].counts.length;
    const totals = Array.from({ length: size }, (_, index) => LEVELS.reduce((sum, level) => sum + counts[level][index], 0));
    const highest = Math.max(...totals);
    const all = totals.reduce((sum, count) => sum + count, 0);
    const svg = drawn("svg", { viewBox: `0 0 ${size} ${HEIGHT}`, preserveAspectRatio: "none" });
    totals.forEach((total, index) => {
      const link = drawn("a", {}, svg);
      link.setAttribute("href", addressOf(startMs + index * stepMs, startMs + (index + 1) * stepMs));
      link.setAttribute("aria-label", `${total} lines from ${timeText(startMs + index * stepMs, size * stepMs)}`);
      link.setAttribute("tabindex", total ? "0" : "-1");
      drawn("title", {}, link).textContent = link.getAttribute("aria-label");
      drawn("rect", { class: "vd-log-slot", x: index, y: 0, width: 1, height: HEIGHT }, link);
      let y = HEIGHT;
      for (const level of LEVELS) {
        const height = highest ? (counts[level][index] / highest) * HEIGHT : 0;
        if (!height) continue;
        y -= height;
        drawn("rect", { class: `vd-log-fill-${level}`, x: index + 0.08, y, width: 0.84, height }, link);
      }
    });
    const axis = document.createElement("div");
    axis.className = "vd-log-axis";
    const sum = `${all.toLocaleString("en")} ${all === 1 ? "line" : "lines"}${answer.is_complete ? "" : " so far: counting took too long"}`;
    for (const text of [timeText(startMs, size * stepMs), sum, timeText(startMs + size * stepMs, size * stepMs)]) {
      axis.append(Object.assign(document.createElement("span"), { textContent: text }));
    }
    place.replaceChildren(svg, axis);
    brush(svg, size, (first, last) => {
      location.href = addressOf(startMs + first * stepMs, startMs + last * stepMs);
    });
  }

  // Drag over the bars to search that time alone.
  function brush(svg, size, choose) {
    let start = null;
    let box = null;
    let isDragged = false;
    const slotAt = (event) => {
      const { left, width } = svg.getBoundingClientRect();
      return Math.min(size, Math.max(0, ((event.clientX - left) / width) * size));
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      start = slotAt(event);
      isDragged = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (start === null) return;
      const here = slotAt(event);
      if (Math.abs(here - start) < 0.5 && !isDragged) return;
      isDragged = true;
      box ||= drawn("rect", { class: "vd-log-brush", y: 0, height: HEIGHT }, svg);
      box.setAttribute("x", Math.min(start, here));
      box.setAttribute("width", Math.abs(here - start));
    });
    window.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [first, last] = [start, slotAt(event)].sort((a, b) => a - b);
      start = null;
      if (isDragged) choose(Math.floor(first), Math.max(Math.floor(first) + 1, Math.ceil(last)));
    });
    // A drag is no click on the bar where it ends.
    svg.addEventListener("click", (event) => {
      if (isDragged) event.preventDefault();
    });
    svg.addEventListener("dragstart", (event) => event.preventDefault());
  }

  async function showHistogram(place) {
    try {
      const answer = await api(place.dataset.histogram);
      if (!answer.ok) throw new Error((await answer.json()).message);
      drawHistogram(place, await answer.json());
    } catch (error) {
      place.firstElementChild.textContent = `Lines can't be counted now. ${error.message}`;
    }
  }

  function followLines(box, lines, state) {
    let isRunning = false;
    async function turn() {
      if (!box.checked) {
        isRunning = false;
        return true;
      }
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (!answer.ok || answer.redirected) throw new Error("no answer");
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const shown = new Set(Array.from(lines.querySelectorAll(":scope > [data-line]"), (line) => line.dataset.line));
      const fresh = Array.from(page.querySelectorAll("[data-log-lines] > [data-line]")).filter((line) => !shown.has(line.dataset.line));
      lines.prepend(...fresh);
      while (lines.childElementCount > MAX_LINES) lines.lastChild.remove();
      if (lines.childElementCount) document.querySelector("[data-log-empty]")?.remove();
      state.textContent = `Following, ${lines.querySelectorAll(":scope > [data-line]").length} lines`;
      return false;
    }
    box.addEventListener("change", () => {
      if (!box.checked) state.textContent = "Stopped";
      if (!box.checked || isRunning) return;
      isRunning = true;
      state.textContent = "Following";
      repeat(TAIL_SECONDS, turn);
    });
  }

  async function toggleContext(button) {
    const line = button.closest("[data-line]");
    const open = line.nextElementSibling;
    if (open?.matches(".vd-log-context")) {
      open.remove();
      button.setAttribute("aria-expanded", "false");
      return;
    }
    const around = document.createElement("div");
    around.className = "vd-log-context";
    around.textContent = "Loading…";
    line.after(around);
    button.setAttribute("aria-expanded", "true");
    const answer = await fetch(button.dataset.context, { credentials: "same-origin" }).catch(() => null);
    if (answer?.ok) around.innerHTML = await answer.text();
    else around.textContent = "The lines around it can't be read now. Try again.";
  }

  const histogram = document.querySelector("[data-histogram]");
  if (histogram) showHistogram(histogram);
  const lines = document.querySelector("[data-log-lines]");
  const tail = document.querySelector("[data-log-tail]");
  if (tail) followLines(tail, lines, document.querySelector("[data-log-state]"));
  lines?.addEventListener("click", (event) => {
    const button = event.target.closest("[data-context]");
    if (button) toggleContext(button);
  });
})();
