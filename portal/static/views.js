// The menu of saved views in the top bar: addresses of dashboards and reports under names.
(() => {
  "use strict";
  const menu = document.getElementById("views");
  const dialog = document.getElementById("save-view");
  if (!menu || !dialog) return;
  const { api } = window.vedette;
  const PATHS = ["/dashboards/", "/reports", "/gpu-usage"];
  const address = () => location.pathname + location.search;
  const canSave = () => PATHS.some((path) => location.pathname.startsWith(path));
  const form = dialog.querySelector("form");

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function row(view) {
    const item = element("li", "vd-view");
    const link = element("a", "dropdown-item d-flex");
    link.href = view.address;
    link.append(element("span", "text-truncate", view.name));
    if (view.is_default) link.append(element("span", "vd-view-note", "start page"));
    else if (view.is_shared) link.append(element("span", "vd-view-note", "shared"));
    item.append(link);
    if (view.is_own || menu.dataset.mayChangeAny) {
      const button = element("button", "btn vd-icon-button");
      button.type = "button";
      button.setAttribute("aria-label", `Delete the view ${view.name}`);
      button.append(element("i", "bi bi-trash"));
      button.addEventListener("click", async (event) => {
        event.stopPropagation();
        await api(`/api/v1/saved-views/${view.id}`, { method: "DELETE" }).catch(() => null);
        write();
      });
      item.append(button);
    }
    return item;
  }

  async function write() {
    const list = menu.querySelector("[data-views]");
    const answer = await api("/api/v1/saved-views").catch(() => null);
    const views = answer?.ok ? (await answer.json()).items : [];
    const empty = answer?.ok ? "No saved views yet." : "The views can't be read. Try again.";
    list.replaceChildren(...(views.length ? views.map(row) : [element("li", "dropdown-item-text text-body-secondary", empty)]));
    menu.querySelector("[data-save-view]").disabled = !canSave();
  }

  menu.addEventListener("show.bs.dropdown", write);
  menu.querySelector("[data-save-view]").addEventListener("click", () => {
    form.reset();
    form.elements.name.value = document.title.replace(/ · Vedette$/, "");
    form.querySelector("[data-error]").hidden = true;
    bootstrap.Modal.getOrCreateInstance(dialog).show();
  });
  dialog.addEventListener("shown.bs.modal", () => form.elements.name.select());

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const body = { name: form.elements.name.value, address: address() };
    for (const name of ["is_shared", "is_default"]) body[name] = form.elements[name]?.checked || false;
    const answer = await api("/api/v1/saved-views", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const error = form.querySelector("[data-error]");
    error.hidden = answer.ok;
    if (answer.ok) return bootstrap.Modal.getInstance(dialog).hide();
    error.textContent = (await answer.json()).message;
  });
})();
