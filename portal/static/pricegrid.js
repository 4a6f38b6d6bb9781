// The week of an offer's prices: shows the lines of special prices as a grid, and paints new ones.
(() => {
  "use strict";
  const editor = document.querySelector("[data-price-grid]");
  const lines = document.getElementById("hourly_prices");
  const usual = document.getElementById("price");
  if (!editor || !lines || !usual) return;
  const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
  const HOURS = 24;
  const LEVELS = 4;
  const body = editor.querySelector("[data-price-cells]");
  const brush = editor.querySelector("[data-paint-price]");
  const cells = [];
  let painting = false;

  function dayNumber(text) {
    return DAYS.findIndex((name) => name.toLowerCase() === text.trim().slice(0, 3).toLowerCase());
  }

  function daysOf(text) {
    const days = new Set();
    for (const part of text.split(",")) {
      const [first, last = first] = part.split("-");
      const start = dayNumber(first);
      const end = dayNumber(last);
      if (start < 0 || end < 0) return null;
      for (let step = 0; step <= (end - start + 7) % 7; step += 1) days.add((start + step) % 7);
    }
    return days;
  }

  // Prices by day and hour; null is the usual price. The first line that matches counts.
  function read() {
    const week = DAYS.map(() => Array(HOURS).fill(null));
    for (const line of lines.value.split("\n").reverse()) {
      const match = line.trim().match(/^(\S+)\s+(\d{1,2})\s*-\s*(\d{1,2})\s+(\d+(?:\.\d+)?)$/);
      const days = match && daysOf(match[1]);
      if (!days) continue;
      for (const day of days) {
        for (let hour = Number(match[2]); hour < Math.min(HOURS, Number(match[3])); hour += 1) {
          week[day][hour] = match[4];
        }
      }
    }
    return week;
  }

  function dayText(days) {
    const runs = [];
    for (const day of days) {
      const run = runs.at(-1);
      if (run && run.at(-1) === day - 1) run.push(day);
      else runs.push([day]);
    }
    return runs.map((run) => (run.length > 1 ? `${DAYS[run[0]]}-${DAYS[run.at(-1)]}` : DAYS[run[0]])).join(",");
  }

  function write(week) {
    const days = new Map();
    week.forEach((prices, day) => {
      for (let hour = 0; hour < HOURS;) {
        const price = prices[hour];
        let end = hour + 1;
        while (end < HOURS && prices[end] === price) end += 1;
        if (price !== null) {
          const key = `${String(hour).padStart(2, "0")}-${String(end).padStart(2, "0")} ${price}`;
          days.set(key, [...(days.get(key) || []), day]);
        }
        hour = end;
      }
    });
    lines.value = [...days].map(([key, list]) => `${dayText(list)} ${key}`).join("\n");
  }

  function draw() {
    const week = read();
    const priceOf = (value) => Number(value ?? usual.value) || 0;
    const prices = [...new Set(week.flat().map(priceOf))].sort((a, b) => a - b);
    cells.forEach((row, day) => row.forEach((cell, hour) => {
      const price = priceOf(week[day][hour]);
      const level = Math.round((prices.indexOf(price) * LEVELS) / Math.max(1, prices.length - 1));
      cell.className = `mk-level-${level}`;
      cell.title = `${DAYS[day]} ${String(hour).padStart(2, "0")}:00: ${editor.dataset.currency} ${price}`;
    }));
  }

  function paint(cell) {
    const price = brush.value.trim();
    if (price && !/^\d+(\.\d+)?$/.test(price)) {
      brush.classList.add("is-invalid");
      return;
    }
    brush.classList.remove("is-invalid");
    const week = read();
    week[Number(cell.dataset.day)][Number(cell.dataset.hour)] = price || null;
    write(week);
    draw();
  }

  DAYS.forEach((name, day) => {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    row.append(head);
    cells.push(Array.from({ length: HOURS }, (_, hour) => {
      const cell = row.insertCell();
      cell.dataset.day = day;
      cell.dataset.hour = hour;
      return cell;
    }));
  });
  body.addEventListener("pointerdown", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    painting = true;
    cell.releasePointerCapture?.(event.pointerId);
    paint(cell);
    event.preventDefault();
  });
  body.addEventListener("pointermove", (event) => {
    if (!painting) return;
    const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-price-cells] td");
    if (cell) paint(cell);
  });
  document.addEventListener("pointerup", () => { painting = false; });
  lines.addEventListener("input", draw);
  usual.addEventListener("input", draw);
  editor.hidden = false;
  draw();
})();
