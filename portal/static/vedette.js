// Shared by all pages: theme toggle, confirmations, copy buttons, relative times, live updates.
(() => {
  "use strict";
  // A request to a server that vanished would wait for ever.
  const ANSWER_MS = 30_000;
  const $$ = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  function api(url, options = {}) {
    const token = document.querySelector('meta[name="csrf-token"]')?.content || "";
    return fetch(url, {
      credentials: "same-origin",
      ...options,
      headers: { Accept: "application/json", "X-CSRFToken": token, ...(options.headers || {}) },
    });
  }

  // Runs `step` now and every `seconds`, never concurrently and not while the tab is hidden,
  // until it returns true. Backs off after errors.
  function repeat(seconds, step) {
    let failures = 0;
    async function turn() {
      if (!document.hidden) {
        try {
          if ((await step()) === true) return;
          failures = 0;
        } catch {
          failures = Math.min(failures + 1, 4);
        }
      }
      setTimeout(turn, seconds * 1000 * 2 ** failures);
    }
    turn();
  }

  function span(seconds) {
    const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
    let secondsLeft = Math.max(0, Math.round(seconds));
    const parts = [];
    for (const [name, size] of units) {
      const count = Math.floor(secondsLeft / size);
      secondsLeft %= size;
      if (count) parts.push(`${count}${name}`);
    }
    return parts.slice(0, 2).join(" ") || "0s";
  }

  function updateTimes() {
    const now = Date.now();
    for (const node of $$("time[data-relative]")) {
      const seconds = (now - Date.parse(node.dateTime)) / 1000;
      const first = span(Math.abs(seconds)).split(" ")[0];
      node.textContent = seconds < -1 ? `in ${first}` : seconds < 5 ? "just now" : `${first} ago`;
    }
    for (const node of $$("[data-since]")) {
      node.textContent = span((now - Date.parse(node.dataset.since)) / 1000);
    }
  }

  // Elements with data-live-url poll the API. When the response changes, all [data-live] elements
  // are replaced with their current version from the server; of the page at data-live-page, if this
  // one answered a form.
  async function refreshParts() {
    const { livePage = location.href } = document.querySelector("[data-live-page]")?.dataset ?? {};
    const answer = await fetch(livePage, { credentials: "same-origin" });
    if (!answer.ok || answer.redirected) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of $$("[data-live]")) {
      const fresh = page.querySelector(`[data-live="${part.dataset.live}"]`);
      if (!fresh || fresh.innerHTML === part.innerHTML) continue;
      const open = $$("details", part).map((details) => details.open);
      const focused = part.contains(document.activeElement) ? document.activeElement : null;
      const href = focused?.getAttribute?.("href");
      part.innerHTML = fresh.innerHTML;
      $$("details", part).forEach((details, index) => {
        if (open[index] !== undefined) details.open = open[index];
      });
      if (href) $$("a", part).find((link) => link.getAttribute("href") === href)?.focus();
    }
    updateTimes();
  }

  function follow(part) {
    const final = (part.dataset.liveUntil || "").split(" ").filter(Boolean);
    let before = null;
    const { liveUrl: url, liveSeconds = 5 } = part.dataset;
    const { vedetteFreshness: freshness } = window;
    freshness.expect(url, () => Number(liveSeconds));
    repeat(Number(liveSeconds), async () => {
      const answer = await api(url, { signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.status === 401) return true;
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const text = await answer.text();
      if (before !== null && text !== before) await refreshParts();
      before = text;
      freshness.updated(url);
      const isFinal = final.length > 0 && final.includes(JSON.parse(text).state);
      if (isFinal) freshness.end(url);
      return isFinal;
    });
  }

  function countBadge(badge) {
    const { vedetteFreshness: freshness } = window;
    freshness.expect(badge.dataset.badge, () => 30);
    repeat(30, async () => {
      const answer = await api(badge.dataset.badge, { signal: AbortSignal.timeout(ANSWER_MS) });
      if (!answer.ok) return answer.status === 401;
      freshness.updated(badge.dataset.badge);
      const { total } = await answer.json();
      badge.hidden = !total;
      badge.textContent = total;
      badge.setAttribute("aria-label", `${total} firing`);
      return false;
    });
  }

  function confirmFirst(form) {
    const dialog = document.getElementById("confirm");
    dialog.querySelector("[data-confirm-text]").textContent = form.dataset.confirm;
    const yes = dialog.querySelector("[data-confirm-yes]");
    yes.textContent = form.dataset.confirmLabel || "Confirm";
    // Use the color of the button that opened the dialog.
    const isDangerous = form.querySelector(".btn-danger, .btn-outline-danger") !== null;
    yes.classList.toggle("btn-danger", isDangerous);
    yes.classList.toggle("btn-primary", !isDangerous);
    const modal = bootstrap.Modal.getOrCreateInstance(dialog);
    yes.onclick = () => {
      modal.hide();
      // A live update may have replaced the form while the dialog was open.
      const current = form.isConnected ? form : $$("form[data-confirm]").find((candidate) => candidate.action === form.action);
      if (!current) return;
      current.dataset.confirmed = "yes";
      current.requestSubmit();
    };
    const opener = document.activeElement;
    dialog.addEventListener("hidden.bs.modal", () => opener.focus(), { once: true });
    modal.show();
  }

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.dataset.confirm && form.dataset.confirmed !== "yes") {
      event.preventDefault();
      confirmFirst(form);
      return;
    }
    const button = event.submitter;
    if (form.method === "post" && button) {
      // Prevents a second submit, after the form data was collected.
      setTimeout(() => {
        button.disabled = true;
        button.setAttribute("aria-busy", "true");
      });
    }
  });

  window.addEventListener("pageshow", () => {
    for (const button of $$('button[aria-busy="true"]')) {
      button.disabled = false;
      button.removeAttribute("aria-busy");
    }
  });

  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-copy], [data-theme-toggle], [data-back]");
    if (!target) return;
    if (target.matches("[data-theme-toggle]")) window.vedetteTheme.toggle();
    if (target.matches("[data-back]")) history.back();
    if (target.dataset.copy !== undefined) {
      const label = target.querySelector("span");
      try {
        await navigator.clipboard.writeText(target.dataset.copy);
        label.textContent = "Copied";
      } catch {
        target.closest(".input-group")?.querySelector("input")?.select();
        label.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { label.textContent = "Copy"; }, 2000);
    }
  });

  document.addEventListener("focusin", (event) => {
    if (event.target.matches?.("[data-select]")) event.target.select();
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-autosubmit]")) event.target.form.requestSubmit();
  });

  window.vedette = { api, repeat, span, refreshParts };
  $$("[data-live-url]").forEach(follow);
  $$("[data-badge]").forEach(countBadge);
  setInterval(updateTimes, 1000);
  document.querySelector(".vd-tabs .active")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  document.querySelector(".vd-error")?.closest(".vd-field")?.querySelector("input, select, textarea")?.focus();
  document.getElementById("preview")?.scrollIntoView({ block: "nearest" });
})();
