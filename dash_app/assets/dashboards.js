"use strict";

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  vedette: {
    // One callback for both directions: the address sets the controls, the controls the address.
    controls(search, range, refresh, choices) {
      const { no_update, callback_context } = window.dash_clientside;
      const triggered = callback_context.triggered.map((one) => one.prop_id);
      const params = new URLSearchParams(search || "");
      const pick = (name, known) => (known.includes(params.get(name)) ? params.get(name) : choices[name]);
      let next = no_update;
      if (triggered.length === 0 || triggered.some((id) => id.startsWith("url."))) {
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
      // No range is selected while a window is.
      range = params.has("from") && params.has("to") ? null : pick("range", choices.ranges);
      const interval = choices.refreshes[refresh];
      return [next, range, refresh, interval || 60000, interval === 0];
    },

    // The page's own form controls are stored in the address, except for defaults.
    choices(...values) {
      const defaults = values.pop();
      const params = new URLSearchParams(window.location.search);
      const before = params.toString();
      Object.entries(defaults).forEach(([name, preset], index) => {
        const value = values[index] ?? "";
        value === preset || value === "" ? params.delete(name) : params.set(name, value);
      });
      if (params.toString() === before) return window.dash_clientside.no_update;
      params.delete("page");
      return `?${params}`;
    },

    title(title) {
      if (title) document.title = `${title} · Vedette`;
      return window.dash_clientside.no_update;
    },
  },
});

// A refresh without a session reloads the page, which leads to the sign-in page; without a server it
// shows a message until one succeeds. A response waits while a mouse button is down: it may replace
// the link that is being clicked.
(() => {
  const fetch = window.fetch.bind(window);
  let released = Promise.resolve();
  window.addEventListener("pointerdown", () => {
    released = new Promise((resolve) => {
      for (const type of ["click", "pointercancel", "dragend", "blur"]) {
        window.addEventListener(type, () => setTimeout(resolve), { once: true });
      }
      setTimeout(resolve, 2000);
    });
  }, true);

  window.fetch = async (resource, options) => {
    const address = typeof resource === "string" ? resource : resource.url;
    if (!address.includes("/_dash-update-component")) return fetch(resource, options);
    try {
      const response = await fetch(resource, options);
      if (response.status === 401 || response.redirected) window.top.location.reload();
      document.body.toggleAttribute("data-vdd-offline", response.status >= 500);
      await released;
      return response;
    } catch (error) {
      document.body.toggleAttribute("data-vdd-offline", true);
      throw error;
    }
  };
})();

// Dash rebuilds the links of a refreshed area: the focus moves to the new link with the same address.
let focused = null;
document.addEventListener("focusin", (event) => { focused = event.target; });
function keepFocus() {
  if (!focused?.href || focused.isConnected || document.activeElement !== document.body) return;
  const same = [...document.links].find((link) => link.href === focused.href && link.className === focused.className);
  same?.focus({ preventScroll: true });
}

// Dash gives radio buttons the roles of a listbox with focusable options, which screen readers skip.
// Without the roles they are read as the plain inputs that they are.
function removeListboxRoles() {
  for (const one of document.querySelectorAll(".dash-radioitems[role], .dash-radioitems > :is([role], [aria-selected])")) {
    one.removeAttribute("role");
    one.removeAttribute("aria-selected");
  }
}

new MutationObserver(() => {
  keepFocus();
  removeListboxRoles();
}).observe(document.documentElement, {
  subtree: true,
  childList: true,
  attributeFilter: ["role", "aria-selected"],
});
