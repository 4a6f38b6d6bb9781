// The efficiency report of the job page: loaded after the page, and again every minute.
"use strict";
(() => {
  const panel = document.querySelector("[data-efficiency]");
  const load = async () => {
    const response = await fetch(panel.dataset.efficiency);
    if (!response.ok) return;
    panel.innerHTML = await response.text();
    panel.hidden = false;
  };
  if (panel) {
    load();
    setInterval(() => document.hidden || load(), 60000);
  }
})();
