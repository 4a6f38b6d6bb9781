// Suggestions below a field (a combobox): metrics, tags, TAG=VALUE lines of what exists, and appliances.
(() => {
  "use strict";
  const { api } = window.vedette;
  const MAX_ITEMS = 50;
  const TYPING_MS = 150;
  const answers = new Map();
  let fields = 0;

  async function page(path, search) {
    const address = `/api/v1/${path}?page_size=${MAX_ITEMS}&search=${encodeURIComponent(search)}`;
    if (!answers.has(address)) {
      const answer = await api(address);
      if (!answer.ok && answer.status !== 404) throw new Error(`status ${answer.status}`);
      answers.set(address, answer.ok ? await answer.json() : { items: [], total: 0 });
    }
    return answers.get(address);
  }

  // The measurement that the form's metric names.
  const measurement = (field) => field.form.elements.metric.value.trim().split(/[\s.+*/]/)[0];

  async function tags(field, search) {
    const name = measurement(field);
    const { items } = await page("metric-fields", name ? `${name}.` : "");
    const own = items.filter((metric) => !name || metric.measurement === name);
    const names = [...new Set(own.flatMap((metric) => metric.tags))];
    return names.filter((tag) => tag.toLowerCase().includes(search.toLowerCase())).map((tag) => ({ text: tag }));
  }

  // Each kind: what of the text is searched for (from `start` to the caret), and what is found.
  const KINDS = {
    appliances: {
      start: () => 0,
      async find(field, search) {
        const { items, total } = await page("jobs/appliances", search);
        return { total, options: items.map((appliance) => ({ text: appliance.name, note: appliance.summary })) };
      },
    },
    metrics: {
      start: (text) => Math.max(0, text.search(/[^\s+*/]*(?: [^\s+*/]+)*$/)),
      async find(field, search) {
        const { items, total } = await page("metric-fields", search);
        return { total, options: items.map((metric) => ({ text: metric.name, unit: metric.unit, note: metric.description, isQuiet: !metric.has_samples })) };
      },
    },
    tags: {
      start: (text) => text.length - /[^\s,]*$/.exec(text)[0].length,
      find: async (field, search) => ({ options: await tags(field, search) }),
    },
    filters: {
      start(text) {
        const line = text.slice(text.lastIndexOf("\n") + 1);
        const part = line.includes("=") ? /[^=,]*$/.exec(line)[0].replace(/^\s+/, "") : line;
        return text.length - part.length;
      },
      async find(field, search) {
        const line = field.value.slice(0, field.selectionStart).split("\n").pop();
        if (!line.includes("=")) return { options: (await tags(field, search)).map(({ text }) => ({ text, insert: `${text}=` })) };
        const tag = line.split("=")[0].trim();
        const name = measurement(field);
        if (!name || !tag) return { options: [] };
        const path = `metrics/${encodeURIComponent(name)}/tags/${encodeURIComponent(tag)}`;
        const { items, total } = await page(path, search);
        return { total, options: items.map((tagValue) => ({ text: tagValue.name, insert: tagValue.value })) };
      },
    },
  };

  function attach(field) {
    const kind = KINDS[field.dataset.suggest];
    const list = document.createElement("div");
    Object.assign(list, { className: "vd-suggestions", id: `suggestions-${++fields}`, hidden: true });
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    field.after(list);
    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-expanded", "false");
    field.setAttribute("aria-controls", list.id);
    let number = 0;
    let timer = null;
    let isSearching = false;

    const part = () => {
      const before = field.value.slice(0, field.selectionStart);
      return { before, start: kind.start(before) };
    };

    function close() {
      number += 1;
      isSearching = false;
      clearTimeout(timer);
      list.hidden = true;
      field.setAttribute("aria-expanded", "false");
      field.removeAttribute("aria-activedescendant");
    }

    function choose(option) {
      for (const item of list.querySelectorAll("[role=option]")) item.setAttribute("aria-selected", String(item === option));
      if (option) field.setAttribute("aria-activedescendant", option.id);
      option?.scrollIntoView({ block: "nearest" });
    }

    function accept(option) {
      const { start } = part();
      const after = field.value.slice(field.selectionStart);
      const insert = option.dataset.insert;
      field.setRangeText(insert, start, field.value.length - after.length, "end");
      close();
      field.dispatchEvent(new Event("input", { bubbles: true }));
      if (!insert.endsWith("=")) close();
    }

    function write({ options, total }) {
      const shown = options.map(({ text, insert, unit, note, isQuiet }, index) => {
        const option = document.createElement("div");
        option.className = `vd-suggestion${isQuiet ? " is-quiet" : ""}`;
        option.id = `${list.id}-${index}`;
        option.dataset.insert = insert ?? text;
        option.setAttribute("role", "option");
        const parts = [["vd-mono", text], ["vd-suggestion-unit", unit], ["vd-suggestion-note", isQuiet ? `${note} (no samples)` : note]];
        option.append(...parts.filter(([, value]) => value).map(([className, textContent]) => Object.assign(document.createElement("span"), { className, textContent })));
        return option;
      });
      const hiddenCount = (total || 0) - options.length;
      const text = !options.length ? "Nothing found." : hiddenCount > 0 ? `${hiddenCount} more. Type to narrow the search.` : "";
      if (text) shown.push(Object.assign(document.createElement("div"), { className: "vd-suggestion-rest", textContent: text }));
      list.replaceChildren(...shown);
      list.hidden = false;
      field.setAttribute("aria-expanded", "true");
      field.removeAttribute("aria-activedescendant");
    }

    async function search() {
      const own = ++number;
      const { before, start } = part();
      isSearching = true;
      try {
        const suggestions = await kind.find(field, before.slice(start).trim());
        if (own === number && document.activeElement === field) write(suggestions);
      } catch {
        if (own === number) close();
      } finally {
        if (own === number) isSearching = false;
      }
    }

    field.addEventListener("input", () => {
      isSearching = true;
      clearTimeout(timer);
      timer = setTimeout(search, TYPING_MS);
    });
    field.addEventListener("click", () => list.hidden && search());
    field.addEventListener("blur", close);
    field.addEventListener("keydown", (event) => {
      const options = [...list.querySelectorAll("[role=option]")];
      const at = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
      const isArea = field.tagName === "TEXTAREA";
      // Enter after fast typing is meant for the suggestions, not to submit the form.
      if (event.key === "Enter" && isSearching && !isArea) event.preventDefault();
      else if (event.key === "ArrowDown" && list.hidden && (!isArea || event.altKey)) search();
      else if (list.hidden) return;
      else if (event.key === "ArrowDown") choose(options[(at + 1) % options.length]);
      else if (event.key === "ArrowUp") choose(options[(at - 1 + options.length) % options.length]);
      else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) accept(options[at]);
      else if (event.key === "Escape") close();
      else return;
      if (event.key !== "Tab") event.preventDefault();
    });
    // Before the field loses the focus.
    list.addEventListener("mousedown", (event) => {
      event.preventDefault();
      const option = event.target.closest("[role=option]");
      if (option) accept(option);
    });
  }

  document.querySelectorAll("[data-suggest]").forEach(attach);
})();
