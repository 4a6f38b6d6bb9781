// The page of one job: follows its log, and fits the frame with its charts.
(() => {
  "use strict";
  const { api, repeat } = window.vedette;

  // Escape sequences are removed; a carriage return overwrites the line.
  const ANSI = /[\u001b\u009b](?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[[()#;?]*(?:\d{1,4}(?:;\d{0,4})*)?[\dA-PR-TZcf-nq-uy=><~])/g;
  const MAX_CHARACTERS = 1_000_000;

  function startLog(panel) {
    const text = panel.querySelector("[data-log-text]");
    const state = panel.querySelector("[data-log-state]");
    const following = panel.querySelector("[data-log-follow]");
    const node = document.createTextNode("");
    text.append(node);
    let offset = 0;
    let attempt = null;
    let line = "";

    function write(piece) {
      // The last line is rewritten with each piece, which may continue or overwrite it.
      const lines = (line + piece.replace(ANSI, "").replace(/\r\n/g, "\n")).split("\n");
      const shown = lines.map((one) => one.slice(one.lastIndexOf("\r", one.length - 2) + 1).replace(/\r$/, ""));
      node.deleteData(node.length - (node.lastLine || 0), node.lastLine || 0);
      node.appendData(shown.join("\n"));
      line = lines[lines.length - 1];
      node.lastLine = shown[shown.length - 1].length;
      if (node.length > MAX_CHARACTERS) node.deleteData(0, node.length - MAX_CHARACTERS);
    }

    text.addEventListener("wheel", (event) => {
      if (event.deltaY < 0) following.checked = false;
    }, { passive: true });
    following.addEventListener("change", () => {
      if (following.checked) text.scrollTop = text.scrollHeight;
    });

    repeat(1, async () => {
      for (;;) {
        const answer = await api(`${panel.dataset.log}?offset=${offset}`);
        if (answer.status === 401) {
          state.textContent = "Signed out";
          return true;
        }
        if (!answer.ok) {
          state.textContent = "The portal is unavailable. Retrying…";
          throw new Error(`status ${answer.status}`);
        }
        const page = await answer.json();
        if (attempt !== null && attempt !== page.attempt_number && page.attempt_number) {
          // Each attempt has its own log.
          attempt = page.attempt_number;
          offset = 0;
          line = "";
          node.data = "";
          node.lastLine = 0;
          continue;
        }
        if (page.attempt_number) attempt = page.attempt_number;
        if (page.text) {
          write(page.text);
          if (following.checked) text.scrollTop = text.scrollHeight;
        }
        const isRead = page.next_offset === offset;
        offset = page.next_offset;
        text.classList.toggle("vd-terminal-empty", offset === 0);
        if (page.is_complete) {
          state.textContent = offset ? "Complete" : "No output";
          return true;
        }
        state.textContent = attempt ? (offset ? "Live" : "No output yet") : "Waiting for an appliance";
        if (isRead) return false;
      }
    });
  }

  // The frame with the charts is as high as its page.
  function fit(frame) {
    const main = frame.contentDocument?.querySelector("main");
    if (!main) return;
    new frame.contentWindow.ResizeObserver(() => {
      frame.style.height = `${main.offsetHeight}px`;
    }).observe(main);
  }

  document.querySelectorAll("[data-log]").forEach(startLog);
  document.querySelectorAll("[data-fit]").forEach((frame) => {
    frame.addEventListener("load", () => fit(frame));
    fit(frame);
  });
})();
