// Bulk selection in a list; it survives live updates of the page.
(() => {
  "use strict";
  const bar = document.getElementById("bulk");
  if (!bar) return;
  const count = bar.querySelector("[data-bulk-count]");
  const selected = new Set();
  const boxes = () => Array.from(document.querySelectorAll("[data-bulk]"));

  function show() {
    const shown = boxes();
    const on = shown.filter((box) => box.checked).length;
    const all = document.querySelector("[data-bulk-all]");
    if (all) {
      all.checked = on > 0 && on === shown.length;
      all.indeterminate = on > 0 && on < shown.length;
    }
    count.textContent = `${on} selected`;
    bar.hidden = !on;
  }

  function remember(box) {
    if (box.checked) selected.add(box.value);
    else selected.delete(box.value);
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
      for (const box of boxes()) box.checked = selected.has(box.value);
      show();
    }).observe(live, { childList: true });
  }
  // Browsers restore checkboxes when the user navigates back.
  window.addEventListener("pageshow", () => {
    boxes().forEach(remember);
    show();
  });
  show();
})();
