// Shows while a user types what the job would get of the GPUs, warns that the chosen appliance or cluster can't run it,
// and hides what the type of job, the choice of GPUs or the cluster does not use.
"use strict";

(() => {
  const form = document.querySelector("[data-fit]");
  const result = form.querySelector("[data-fit-result]");
  const offers = form.querySelector("[data-offers]");
  const names = [
    "appliance", "gpu_choice", "gpus", "gpu_slice", "gpu_memory", "gpu_compute", "cpus", "memory", "gpu_models",
    "required_labels", "project", "image", "without_image", "time_limit", "cluster", "cluster_options",
    "slurm_partition", "kubernetes_queue", "nodes", "instances", "array", "max_gpu_hour_price",
  ];
  let timer;
  let latest = 0;

  function show(rejections) {
    const lines = rejections.never.length ? rejections.never : rejections.busy;
    const title = rejections.never.length ? "This appliance can't run the job: " : "The job will wait: ";
    result.className = `col-12 ${rejections.never.length ? "vd-error" : "form-text"}`;
    result.textContent = lines.length ? title + lines.join("; ") + "." : "";
    result.hidden = !lines.length;
  }

  function showProblems(problems) {
    const element = form.querySelector("[data-cluster-result]");
    element.textContent = problems.join(" ");
    element.hidden = !problems.length;
  }

  function line(offer) {
    const item = document.createElement("li");
    const title = document.createElement("strong");
    title.textContent = offer.title;
    const isolation = document.createElement("div");
    isolation.className = "form-text mt-0";
    const parts = ["memory", "faults", "bandwidth"].map((name) => `${name}: ${offer.isolation[name]}`);
    isolation.textContent = `${parts.join(". ").replace(/(^|\. )[a-z]/g, (start) => start.toUpperCase())}.`;
    item.append(title, `: ${offer.text}`, isolation);
    return item;
  }

  function showOffers(listed) {
    const choice = form.elements.gpu_choice.value;
    const isPart = choice !== "whole";
    const isFilled = isPart ? wantsPart() : Number(form.elements.gpus.value) > 0;
    const list = document.createElement("ul");
    list.className = "vd-offers";
    list.append(...listed.map(line));
    const lead = document.createElement("div");
    lead.className = "form-text mt-0";
    if (!listed.length) {
      const rents = Number(form.elements.max_gpu_hour_price?.value) > 0;
      lead.textContent = rents
        ? "No GPU of an own appliance has that: the job runs on rented ones alone."
        : "No GPU that the job may use has that.";
    } else if (isPart && listed.every((offer) => offer.mode === "whole")) {
      lead.textContent = "No GPU is cut into slices that suffice, so the job gets a whole one.";
    }
    offers.replaceChildren(...(lead.textContent ? [lead] : []), ...(listed.length ? [list] : []));
    offers.hidden = !isFilled;
  }

  function wantsPart() {
    if (form.elements.gpu_choice.value === "profile") {
      return form.elements.gpu_slice.value.trim() !== "";
    }
    return [form.elements.gpu_memory, form.elements.gpu_compute].some((input) => parseFloat(input.value) > 0);
  }

  function showCost(text) {
    const element = form.querySelector("[data-cost]");
    element.textContent = text;
    element.hidden = !text;
  }

  async function check() {
    const own = ++latest;
    const body = new FormData(form);
    body.delete("secrets");
    const response = await fetch(form.dataset.fit, { method: "POST", body, headers: { Accept: "application/json" } });
    if (response.ok && own === latest) {
      const answer = await response.json();
      const showAnswer = () => {
        show(answer);
        showOffers(answer.offers);
        showProblems(answer.clusters);
        showCost(answer.cost);
      };
      if (isAimed) pending = showAnswer;
      else showAnswer();
    }
  }

  // An answer moves the buttons: one below the pointer would miss the click.
  const actions = form.querySelector(".vd-form-actions");
  let isAimed = false;
  let pending = null;
  actions.addEventListener("pointerenter", () => {
    isAimed = true;
  });
  actions.addEventListener("pointerleave", () => {
    isAimed = false;
    pending?.();
    pending = null;
  });

  form.addEventListener("input", (event) => {
    if (names.includes(event.target.name)) {
      clearTimeout(timer);
      timer = setTimeout(() => check().catch(() => {}), 400);
    }
  });
  check().catch(() => {});

  const choice = form.elements.gpu_choice;
  function showChoice() {
    for (const group of form.querySelectorAll("[data-choice]")) {
      // What is wrong stays in sight.
      group.hidden = !group.dataset.choice.split(" ").includes(choice.value) && !group.querySelector(".vd-error");
    }
  }
  choice.addEventListener("change", showChoice);
  showChoice();

  // A job without a container has no image.
  const withoutImage = form.elements.without_image;
  function showImage() {
    const image = form.querySelector("[data-image]");
    image.hidden = withoutImage.checked && !image.querySelector(".vd-error");
  }
  if (withoutImage) {
    withoutImage.addEventListener("change", showImage);
    showImage();
  }

  // A chosen cluster has the options of its kind, and its own queues.
  const cluster = form.elements.cluster;
  function showCluster() {
    const kind = JSON.parse(form.querySelector("[data-clusters]").dataset.clusters)[cluster.value];
    for (const group of form.querySelectorAll("[data-cluster-kind]")) {
      group.hidden = Boolean(kind) && group.dataset.clusterKind !== kind && !group.querySelector(".vd-error");
    }
    for (const option of form.querySelectorAll("option[data-cluster]")) {
      option.disabled = cluster.value !== "" && option.dataset.cluster !== cluster.value;
    }
  }
  if (cluster) {
    cluster.addEventListener("change", showCluster);
    showCluster();
  }

  // Adds a line for the chosen dataset.
  const picker = form.querySelector("[data-dataset-picker]");
  if (picker) {
    picker.hidden = false;
    const select = picker.querySelector("select");
    select.addEventListener("change", () => {
      const lines = form.elements.datasets.value.split("\n").filter((text) => text.trim());
      if (select.value) lines.push(`${select.value}:/data/${select.value}`);
      form.elements.datasets.value = lines.join("\n");
      select.value = "";
      form.elements.datasets.focus();
    });
  }

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
