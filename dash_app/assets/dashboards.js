"use strict";

function writeValues(element, [className, title, width, text]) {
  if (element.className !== (className || "")) {
    element.className = className || "";
  }
  if ((element.getAttribute("title") || "") !== (title || "")) {
    title ? element.setAttribute("title", title) : element.removeAttribute("title");
  }
  if (width !== null && element.style.width !== width) {
    element.style.width = width;
  }
  if (text !== null && element.textContent !== text) {
    element.textContent = text;
  }
}

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  vedette: {
    // One callback both ways: the address sets the controls, the controls set the address.
    controls(search, range, refresh, choices) {
      const same = window.dash_clientside.no_update;
      const triggered = window.dash_clientside.callback_context.triggered.map((t) => t.prop_id);
      const params = new URLSearchParams(search || "");
      const pick = (name, known) => (known.includes(params.get(name)) ? params.get(name) : choices[name]);
      const fromAddress = triggered.length === 0 || triggered.some((id) => id.startsWith("url."));
      let next = same;
      if (fromAddress) {
        refresh = pick("refresh", Object.keys(choices.refreshes));
      } else {
        if (triggered.includes("range.value") && range) {
          params.set("range", range);
          params.delete("from");
          params.delete("to");
        }
        params.set("refresh", refresh);
        next = `?${params}`;
      }
      // A window that stands still is none of the ranges.
      range = params.has("from") && params.has("to") ? null : pick("range", choices.ranges);
      const interval = choices.refreshes[refresh];
      return [next, range, refresh, interval || 60000, interval === 0];
    },

    // Writes an area's values (see live.py) into its elements; a shape that React has not drawn
    // yet came with its values and is left alone.
    write(areas) {
      for (const [id, values] of Object.entries(areas || {})) {
        const area = document.getElementById(id);
        const elements = area ? area.querySelectorAll("*") : [];
        if (elements.length === values.length) {
          elements.forEach((element, index) => writeValues(element, values[index]));
        }
      }
      return window.dash_clientside.no_update;
    },

    title(title) {
      if (title) {
        document.title = `${title} · Vedette`;
      }
      return window.dash_clientside.no_update;
    },
  },
});

// A refresh that meets a closed session reloads the page, which leads to the sign-in; one that
// meets no server at all says so until the next one succeeds.
(() => {
  const ask = window.fetch.bind(window);
  window.fetch = async (resource, options) => {
    const address = typeof resource === "string" ? resource : resource.url;
    if (!address.includes("/_dash-update-component")) {
      return ask(resource, options);
    }
    try {
      const response = await ask(resource, options);
      if (response.status === 401 || response.redirected) {
        window.location.reload();
      }
      document.body.toggleAttribute("data-vdd-offline", response.status >= 500);
      return response;
    } catch (error) {
      document.body.toggleAttribute("data-vdd-offline", true);
      throw error;
    }
  };
})();

// Dash calls its radio buttons options of a listbox, and then nests focusable inputs in them, which
// screen readers skip. As the plain inputs in their labels that they are, they are read well.
function plainRadios() {
  for (const list of document.querySelectorAll(".dash-radioitems[role]")) {
    list.removeAttribute("role");
  }
  for (const option of document.querySelectorAll(".dash-radioitems > [role], .dash-radioitems > [aria-selected]")) {
    option.removeAttribute("role");
    option.removeAttribute("aria-selected");
  }
}

new MutationObserver(plainRadios).observe(document.documentElement, {
  subtree: true,
  childList: true,
  attributeFilter: ["role", "aria-selected"],
});
