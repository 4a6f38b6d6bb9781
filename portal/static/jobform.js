// Warns while a user types that the chosen appliance can't run the job, and hides what the type of job does not use.
"use strict";

(() => {
  const form = document.querySelector("[data-fit]");
  const result = form.querySelector("[data-fit-result]");
  const names = ["appliance", "gpus", "gpu_memory", "cpus", "memory", "gpu_models", "required_labels"];
  let timer;
  let latest = 0;

  function show(rejections) {
    const lines = rejections.never.length ? rejections.never : rejections.busy;
    const title = rejections.never.length ? "This appliance can't run the job: " : "The job will wait: ";
    result.className = `col-12 ${rejections.never.length ? "vd-error" : "form-text"}`;
    result.textContent = lines.length ? title + lines.join("; ") + "." : "";
    result.hidden = !lines.length;
  }

  async function check() {
    const own = ++latest;
    if (!form.elements.appliance.value.trim()) {
      show({ never: [], busy: [] });
      return;
    }
    const body = new FormData(form);
    body.delete("secrets");
    const response = await fetch(form.dataset.fit, { method: "POST", body, headers: { Accept: "application/json" } });
    if (response.ok && own === latest) {
      show(await response.json());
    }
  }

  form.addEventListener("input", (event) => {
    if (names.includes(event.target.name)) {
      clearTimeout(timer);
      timer = setTimeout(() => check().catch(() => {}), 400);
    }
  });
  check().catch(() => {});

  const kind = form.elements.kind;
  function showKind() {
    for (const group of form.querySelectorAll("[data-kind]")) {
      // What is filled in stays in sight.
      group.hidden = group.dataset.kind !== kind.value && !group.open;
    }
  }
  if (kind) {
    kind.addEventListener("change", showKind);
    showKind();
  }
})();
