// Ticks in a list: all at once, counted, and kept while the live part of the page is renewed.
(() => {
  "use strict";
  const bar = document.getElementById("bulk");
  if (!bar) return;
  const count = bar.querySelector("[data-bulk-count]");
  const ticked = new Set();
  const boxes = () => Array.from(document.querySelectorAll("[data-bulk]"));

  function show() {
    const here = boxes();
    const on = here.filter((box) => box.checked).length;
    const all = document.querySelector("[data-bulk-all]");
    if (all) {
      all.checked = on > 0 && on === here.length;
      all.indeterminate = on > 0 && on < here.length;
    }
    count.textContent = `${on} ticked`;
    bar.hidden = !on;
  }

  function remember(box) {
    if (box.checked) ticked.add(box.value);
    else ticked.delete(box.value);
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-bulk-all]")) {
      for (const box of boxes()) box.checked = event.target.checked;
      boxes().forEach(remember);
      show();
    } else if (event.target.matches("[data-bulk]")) {
      remember(event.target);
      show();
    }
  });

  const live = document.querySelector('[data-live="appliances"]');
  if (live) {
    new MutationObserver(() => {
      for (const box of boxes()) box.checked = ticked.has(box.value);
      show();
    }).observe(live, { childList: true });
  }
  // A browser that comes back to the page ticks its boxes again by itself.
  window.addEventListener("pageshow", () => {
    boxes().forEach(remember);
    show();
  });
  show();
})();
