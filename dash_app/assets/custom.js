"use strict";

// Custom dashboards: the menu of a panel moves, copies and removes it, and its title can be dragged
// onto another panel. The change is made on the version that is shown, or not at all.
(() => {
  const changes = {
    earlier: (panels, at) => panels.splice(Math.max(0, at - 1), 0, ...panels.splice(at, 1)),
    later: (panels, at) => panels.splice(at + 1, 0, ...panels.splice(at, 1)),
    copy: (panels, at) => panels.splice(at + 1, 0, { ...panels[at], title: `Copy of ${panels[at].title}`.slice(0, 100) }),
    remove: (panels, at) => panels.splice(at, 1),
    to: (panels, at, target) => panels.splice(target, 0, ...panels.splice(at, 1)),
  };

  function show(text) {
    const area = document.getElementById("custom-problem");
    const message = document.createElement("div");
    Object.assign(message, { className: "alert alert-danger", textContent: text });
    message.setAttribute("role", "alert");
    area?.replaceChildren(message);
  }

  async function change(name, ...places) {
    const address = `/api/v1/dashboards/${document.querySelector(".vdd-custom").dataset.dashboard}`;
    const { api } = window.vedette;
    const response = await api(address);
    if (!response.ok) return show("The dashboard is gone. Reload the page.");
    const dashboard = await response.json();
    changes[name](dashboard.panels, ...places);
    const body = Object.fromEntries(["name", "description", "is_shared", "panels"].map((key) => [key, dashboard[key]]));
    const headers = { "Content-Type": "application/json", "If-Match": response.headers.get("ETag") };
    const answer = await api(address, { method: "PUT", headers, body: JSON.stringify(body) });
    if (!answer.ok) return show((await answer.json()).message);
    window.dash_clientside.set_props("changed", { data: Date.now() });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-vdd-change]");
    if (button) change(button.dataset.vddChange, Number(button.dataset.index));
  });

  const panels = () => [...document.querySelectorAll(".vdd-custom.is-changeable > .vdd-panel")];
  let dragged = null;

  document.addEventListener("pointerdown", (event) => {
    const panel = event.target.closest(".vdd-custom.is-changeable .vdd-panel-head > h2")?.closest(".vdd-panel");
    if (panel) panel.draggable = true;
  });
  document.addEventListener("dragstart", (event) => {
    dragged = event.target.closest?.(".vdd-custom.is-changeable > .vdd-panel") || null;
    if (dragged) event.dataTransfer.effectAllowed = "move";
  });
  document.addEventListener("dragover", (event) => {
    const target = dragged && event.target.closest(".vdd-custom > .vdd-panel");
    for (const panel of panels()) panel.classList.toggle("is-target", panel === target && panel !== dragged);
    if (target) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    const target = dragged && event.target.closest(".vdd-custom > .vdd-panel");
    if (!target || target === dragged) return;
    event.preventDefault();
    const all = panels();
    change("to", all.indexOf(dragged), all.indexOf(target));
  });
  document.addEventListener("dragend", () => {
    for (const panel of panels()) panel.classList.remove("is-target");
    if (dragged) dragged.draggable = false;
    dragged = null;
  });
  document.addEventListener("pointerup", () => {
    if (!dragged) for (const panel of panels()) panel.draggable = false;
  });
})();
