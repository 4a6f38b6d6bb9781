// Shows the fields of a partition policy that its mode has.
"use strict";

(() => {
  const form = document.querySelector("[data-partition]");
  if (!form) {
    return;
  }
  function show() {
    for (const part of form.querySelectorAll("[data-modes]")) {
      part.hidden = !part.dataset.modes.split(" ").includes(form.elements.mode.value);
    }
  }
  form.elements.mode.addEventListener("change", show);
  show();
})();
