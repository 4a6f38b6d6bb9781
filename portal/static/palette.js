// Ctrl-K: go to a page, an appliance, a GPU, a job, a rule, a dashboard or a saved view. `?`: the keyboard shortcuts.
(() => {
  "use strict";
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const { api } = window.vedette;
  const input = dialog.querySelector("input");
  const list = dialog.querySelector("[role=listbox]");
  const MAX_ITEMS = 6;
  let latestSearch = 0;
  let timer = null;

  const show = (id) => bootstrap.Modal.getOrCreateInstance(document.getElementById(id)).show();
  const isOpen = () => document.querySelector(".modal.show") !== null;

  function pages(words) {
    return [...document.querySelectorAll("#sidebar a.vd-nav-link, header a.dropdown-item")]
      .map((link) => ({ kind: "Page", label: link.textContent.trim().replace(/\s*\d+$/, ""), href: link.getAttribute("href") }))
      .filter(({ label }) => words.every((word) => label.toLowerCase().includes(word)));
  }

  async function items(path) {
    const answer = await api(`/api/v1/${path}`);
    return answer.ok ? (await answer.json()).items : [];
  }

  // `dgx-01 gpu 3` is a GPU of an appliance.
  async function objects(text) {
    const [, name, gpu] = /^(.*?)(?:\s+gpu\s*(\d+)?)?$/i.exec(text);
    const search = encodeURIComponent(name.trim());
    const [appliances, jobs, rules, dashboards, views] = await Promise.all([
      items(`appliances?search=${search}&page_size=${MAX_ITEMS}`),
      items(`jobs?search=${encodeURIComponent(text)}&page_size=${MAX_ITEMS}`),
      items("rules?page_size=100"),
      items(`dashboards?search=${encodeURIComponent(text)}&page_size=${MAX_ITEMS}`),
      items("saved-views"),
    ]);
    const isGPU = /\sgpu/i.test(text);
    return [
      ...appliances.map((appliance) => ({ kind: "Appliance", label: appliance.name, note: appliance.site, href: `/dashboards/appliances/${appliance.id}` })),
      ...(isGPU ? appliances.slice(0, 2) : []).flatMap((appliance) =>
        Array.from({ length: appliance.gpu_count || 0 }, (_, index) => index)
          .filter((index) => gpu === undefined || String(index) === gpu)
          .map((index) => ({ kind: "GPU", label: `${appliance.name} GPU ${index}`, href: `/dashboards/appliances/${appliance.id}/gpus/${index}` }))),
      ...jobs.map((job) => ({ kind: "Job", label: job.name, note: job.state, href: `/jobs/${job.id}` })),
      ...rules.filter((rule) => rule.name.toLowerCase().includes(text.toLowerCase())).slice(0, MAX_ITEMS)
        .map((rule) => ({ kind: "Rule", label: rule.name, href: `/rules/${rule.id}` })),
      ...dashboards.map((dashboard) => ({ kind: "Dashboard", label: dashboard.name, note: dashboard.description, href: `/dashboards/custom/${dashboard.id}` })),
      ...views.filter((view) => view.name.toLowerCase().includes(text.toLowerCase())).slice(0, MAX_ITEMS)
        .map((view) => ({ kind: "View", label: view.name, href: view.address })),
    ];
  }

  function choose(option) {
    for (const item of list.children) item.setAttribute("aria-selected", String(item === option));
    input.setAttribute("aria-activedescendant", option?.id || "");
    option?.scrollIntoView({ block: "nearest" });
  }

  function write(entries) {
    list.replaceChildren(...entries.map(({ kind, label, note, href }, index) => {
      const option = document.createElement("a");
      Object.assign(option, { href, id: `palette-${index}`, className: "vd-option", tabIndex: -1 });
      option.setAttribute("role", "option");
      const parts = [["vd-option-kind", kind], ["", label], ["vd-option-note", note || ""]];
      option.append(...parts.map(([className, text]) => Object.assign(document.createElement("span"), { className, textContent: text })));
      return option;
    }));
    dialog.querySelector("[data-none]").hidden = entries.length > 0;
    choose(list.firstElementChild);
  }

  async function search() {
    const text = input.value.trim();
    const searchNumber = ++latestSearch;
    const pageEntries = pages(text.toLowerCase().split(/\s+/));
    if (!text) return write(pageEntries);
    const objectEntries = await objects(text).catch(() => []);
    if (searchNumber === latestSearch) write([...pageEntries, ...objectEntries]);
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 150);
  });
  input.addEventListener("keydown", (event) => {
    const chosen = list.querySelector("[aria-selected=true]");
    if (event.key === "ArrowDown") choose(chosen?.nextElementSibling || list.firstElementChild);
    else if (event.key === "ArrowUp") choose(chosen?.previousElementSibling || list.lastElementChild);
    else if (event.key === "Enter" && chosen) chosen.click();
    else return;
    event.preventDefault();
  });
  // Fast users type while it still fades in.
  dialog.addEventListener("show.bs.modal", () => {
    input.value = "";
    search();
  });
  dialog.addEventListener("shown.bs.modal", () => input.focus());

  const time = (action) => () => window.vedetteTime?.[action]();
  const SHORTCUTS = {
    "?": () => show("shortcuts"),
    "/": () => show("palette"),
    "[": time("back"),
    "]": time("forward"),
    "-": time("out"),
    r: time("now"),
    k: time("kiosk"),
    f() {
      const panel = document.querySelector(".vdd-panel.is-full, .vdd-panel:hover, .vdd-panel:focus-within");
      if (panel) window.vedettePanel?.full(panel);
    },
    Escape() {
      const panel = document.querySelector(".vdd-panel.is-full");
      if (panel) window.vedettePanel.full(panel);
      else if (document.body.classList.contains("vdd-kiosk")) time("kiosk")();
    },
  };
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      return show("palette");
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isOpen()) return;
    if (event.target.closest?.("input, textarea, select, [contenteditable], .dropdown-menu")) return;
    const action = SHORTCUTS[event.key];
    if (!action) return;
    if (event.key !== "Escape") event.preventDefault();
    action();
  });
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open]");
    if (opener) show(opener.dataset.open);
  });
})();
