// Runs the backtest of a rule's form in its page, with its progress. Without this script, or with
// errors in the form, the form is submitted instead.
(() => {
  "use strict";
  const place = document.querySelector("[data-backtest]");
  const button = document.querySelector("button[name=action][value=backtest]");
  if (!place || !button) return;
  const form = button.form;
  let running = null;

  function showProgress() {
    place.innerHTML = `<section class="vd-panel" id="backtest" aria-labelledby="backtest-title">
      <h2 class="vd-panel-title" id="backtest-title">Backtest</h2>
      <div class="vd-panel-note"><progress class="vd-progress" max="1" value="0" aria-labelledby="backtest-title"></progress> <span role="status">Reading samples: 0 %</span></div></section>`;
    place.scrollIntoView({ block: "nearest" });
  }

  function show(line) {
    const part = JSON.parse(line);
    if (part.html !== undefined) {
      place.innerHTML = part.html;
      place.scrollIntoView({ block: "nearest" });
      return;
    }
    place.querySelector("progress").value = part.done;
    place.querySelector("[role=status]").textContent = `Reading samples: ${Math.round(part.done * 100)} %`;
  }

  async function run(signal) {
    const answer = await fetch(place.dataset.backtest, { method: "POST", body: new FormData(form), signal });
    if (!answer.ok) {
      form.removeEventListener("submit", start);
      form.requestSubmit(button);
      return;
    }
    showProgress();
    let text = "";
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (text + part.value).split("\n");
      text = lines.pop();
      lines.forEach(show);
    }
    if (place.querySelector("progress")) throw new Error("cut off");
  }

  async function start(event) {
    if (event.submitter !== button) return;
    event.preventDefault();
    running?.abort();
    const own = new AbortController();
    running = own;
    button.setAttribute("aria-busy", "true");
    try {
      await run(own.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      place.innerHTML = '<p class="vd-panel vd-panel-note" role="alert">The backtest failed. Try again, or choose a metric with fewer series.</p>';
    } finally {
      if (running === own) button.removeAttribute("aria-busy");
    }
  }

  form.addEventListener("submit", start);
})();
