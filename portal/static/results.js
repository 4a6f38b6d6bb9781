// The preview of a file: loaded after the page, as it may be far away.
"use strict";
(() => {
  const place = document.querySelector("[data-preview]");
  const say = (text) => {
    const note = document.createElement("p");
    note.className = "vd-panel-note";
    note.textContent = text;
    place.replaceChildren(note);
  };
  const load = async () => {
    try {
      const response = await fetch(place.dataset.preview);
      if (!response.ok) throw new Error(String(response.status));
      place.innerHTML = await response.text();
    } catch {
      say("The preview can't be loaded now. Reload the page, or download the file.");
    }
  };
  if (place) load();
})();
