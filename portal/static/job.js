// The page of one job: fits the frame with its charts.
(() => {
  "use strict";
  // The frame with the charts is as high as its page.
  function fit(frame) {
    const main = frame.contentDocument?.querySelector("main");
    if (!main) return;
    new frame.contentWindow.ResizeObserver(() => {
      frame.style.height = `${main.offsetHeight}px`;
    }).observe(main);
  }

  document.querySelectorAll("[data-fit]").forEach((frame) => {
    frame.addEventListener("load", () => fit(frame));
    fit(frame);
  });
})();
