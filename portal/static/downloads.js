// Files that take a while to render: their link counts the seconds until the file is there.
(() => {
  "use strict";

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  async function prepare(link) {
    const icon = link.querySelector("i");
    const seconds = link.appendChild(document.createElement("span"));
    seconds.setAttribute("role", "status");
    const looks = icon.className;
    const startedAt = Date.now();
    const count = () => { seconds.textContent = ` preparing, ${Math.round((Date.now() - startedAt) / 1000)} s`; };
    link.setAttribute("aria-busy", "true");
    icon.className = "spinner-border spinner-border-sm";
    count();
    const timer = setInterval(count, 1000);
    try {
      const answer = await fetch(link.href, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.statusText);
      const [, name] = /filename="([^"]+)"/.exec(answer.headers.get("Content-Disposition")) || [];
      save(await answer.blob(), name || "report");
    } catch {
      location.href = link.href; // which says what is wrong
    } finally {
      clearInterval(timer);
      seconds.remove();
      icon.className = looks;
      link.removeAttribute("aria-busy");
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-prepared]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (!link.hasAttribute("aria-busy")) prepare(link);
  });
})();
