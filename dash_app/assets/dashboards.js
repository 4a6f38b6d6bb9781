"use strict";

window.dash_clientside = Object.assign({}, window.dash_clientside, {
  vedette: {
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
      // Dashboards of appliances and jobs are tabs of their pages; custom ones have a list of their own.
      const tier = location.pathname.match(/^\/dashboards\/(appliances|jobs|custom)\//)?.[1];
      const section = tier === "custom" ? "/custom-dashboards" : tier ? `/${tier}` : "/dashboards/";
      for (const link of document.querySelectorAll(".vd-sidebar .vd-nav-link")) {
        link.pathname === section ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
      }
      return window.dash_clientside.no_update;
    },
  },
});

// A refresh without a session reloads the page, which leads to the sign-in page. A response waits while
// a mouse button is down: it may replace the link that is being clicked.
(() => {
  // A request to a server that vanished would wait for ever, and no other would be sent.
  const ANSWER_MS = 60_000;
  const SOURCE = "dashboard";
  const freshness = window.vedetteFreshness;
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

  // A tick whose refresh is still under way is left out, so that refreshes never overlap.
  const underWay = new Set();
  function tickOf(options) {
    const { output, changedPropIds } = JSON.parse(options?.body || "{}");
    return String(changedPropIds) === "tick.n_intervals" ? output : null;
  }

  // Without a toolbar there is nothing to refresh; 0 is off.
  freshness.expect(SOURCE, () => Number(document.querySelector(".vdd-toolbar")?.dataset.refreshSeconds) || Infinity);

  window.fetch = async (resource, options) => {
    const address = typeof resource === "string" ? resource : resource.url;
    // The page has its layout and the list of callbacks in it.
    const script = address.includes("/_dash-") && document.getElementById(address.split("/").pop());
    if (script) return new Response(script.textContent, { headers: { "Content-Type": "application/json" } });
    if (!address.includes("/_dash-update-component")) return fetch(resource, options);
    const tick = tickOf(options);
    if (tick && (document.hidden || underWay.has(tick))) return new Response(null, { status: 204 });
    underWay.add(tick);
    try {
      const response = await fetch(resource, { ...options, signal: AbortSignal.timeout(ANSWER_MS) });
      if (response.status === 401 || response.redirected) window.top.location.reload();
      if (response.ok) freshness.updated(SOURCE);
      await released;
      return response;
    } finally {
      underWay.delete(tick);
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
  for (const group of document.querySelectorAll(".dash-radioitems[role], .dash-radioitems > :is([role], [aria-selected])")) {
    group.removeAttribute("role");
    group.removeAttribute("aria-selected");
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
