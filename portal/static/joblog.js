// The log of a job: followed as server-sent events, colored, filtered and searched.
(() => {
  "use strict";
  const { api } = window.vedette;
  const Anser = window.module.exports;

  // Escape sequences other than colors.
  const CONTROLS = /[\u001b\u009b](?!\[[\d;]*m)(?:\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[[()#;?]*(?:\d{1,4}(?:;\d{0,4})*)?[\dA-PR-TZcf-nq-uy=><~])/g;
  // Colors of terminals that can't be read on our background.
  const READABLE = {
    "0, 0, 0": "#7d8590", "0, 0, 187": "#79a8ff", "187, 0, 0": "#ff7b72", "85, 85, 85": "#9aa4b2", "187, 0, 187": "#d2a8ff",
  };
  const MAX_LINES = 20000;
  const MAX_MATCHES = 1000;
  const TAIL_BYTES = 262144;
  const RETRY_MS = 5000;
  const HIDDEN_MS = 60000;

  class Lines {
    constructor(root) {
      this.root = root;
      this.colors = {};
      this.open = {};
    }

    clear() {
      this.root.replaceChildren();
      this.colors = {};
      this.open = {};
    }

    append(lines) {
      const added = document.createDocumentFragment();
      for (const line of lines) {
        const before = this.open[line.stream];
        if (before) before.text += line.text;
        const entry = before || { text: line.text, node: element("div", `vd-line vd-${line.stream}`) };
        if (!before) {
          const at = element("time", "vd-line-at", line.at ? window.vedetteZone.timeOfDay(line.at) : "");
          if (line.at) at.dateTime = line.at;
          entry.node.append(at, element("span"));
          added.append(entry.node);
        }
        this.color(entry.node.lastChild, entry.text, line.stream);
        this.open[line.stream] = line.is_open ? entry : null;
      }
      this.root.append(added);
      while (this.root.childElementCount > MAX_LINES) this.root.firstChild.remove();
    }

    color(node, text, stream) {
      const shown = text.replace(CONTROLS, "").replace(/\r+$/, "");
      const anser = (this.colors[stream] ||= new Anser());
      node.replaceChildren();
      for (const part of anser.ansiToJson(shown.slice(shown.lastIndexOf("\r") + 1), { remove_empty: true })) {
        const span = element("span", part.decorations.map((name) => `vd-ansi-${name}`).join(" "), part.content);
        // The policy allows scripts to set styles, but not markup to have them.
        if (part.fg) span.style.color = READABLE[part.fg] || `rgb(${part.fg})`;
        if (part.bg) span.style.backgroundColor = `rgb(${part.bg})`;
        node.append(span);
      }
    }
  }

  function element(name, className = "", text = "") {
    const node = document.createElement(name);
    if (className) node.className = className;
    node.textContent = text;
    return node;
  }

  function startLog(panel) {
    const find = (name) => panel.querySelector(`[data-log-${name}]`);
    const text = find("text");
    const matches = find("matches");
    const following = find("follow");
    const live = new Lines(text);
    const url = panel.dataset.log;
    let tail = TAIL_BYTES;
    let position = "";
    let source = null;
    let attempt = 0;
    let isDone = false;
    let shown = 0;

    const say = (words) => { find("state").textContent = words; };
    const scroll = () => { if (following.checked) text.scrollTop = text.scrollHeight; };

    function connect() {
      const start = position ? `after=${position}` : `tail_bytes=${tail}`;
      source = new EventSource(`${url.replace(/log$/, "follow")}?${start}`);
      const on = (name, react) => source.addEventListener(name, (event) => {
        if (event.lastEventId) position = event.lastEventId;
        react(JSON.parse(event.data));
      });
      let seen = null;
      on("state", (state) => {
        say(state.attempt_number ? (shown ? "Live" : "No output yet") : "Waiting for an appliance");
        if (seen !== null) window.vedette.refreshParts();
        seen = state;
        if (state.log_is_full) say("The log is full: later output is not stored");
      });
      on("log", (piece) => {
        if (!shown) find("earlier").hidden = piece.offset === 0;
        if (attempt && attempt !== piece.attempt_number) {
          live.append([{ at: "", stream: "note", text: `Attempt ${piece.attempt_number}`, is_open: false }]);
        }
        attempt = piece.attempt_number;
        shown += piece.lines.length;
        live.append(piece.lines);
        text.classList.remove("vd-terminal-empty");
        say("Live");
        scroll();
      });
      on("end", (state) => {
        isDone = true;
        source.close();
        if (state.log_is_deleted) say("Deleted to make room for newer logs");
        else if (state.log_is_full) say("Full: later output was not stored");
        else say(shown ? "Complete" : "No output");
        text.classList.toggle("vd-terminal-empty", !shown);
        window.vedette.refreshParts();
      });
      on("problem", (problem) => {
        source.close();
        say(problem.code === "unauthenticated" ? "Signed out" : problem.message);
        if (problem.code !== "unauthenticated") setTimeout(connect, RETRY_MS);
      });
      source.onerror = () => {
        say("The portal is unavailable. Reconnecting…");
        if (source.readyState === EventSource.CLOSED && !isDone) setTimeout(connect, RETRY_MS);
      };
    }

    function restart() {
      source?.close();
      live.clear();
      position = "";
      attempt = shown = 0;
      isDone = false;
      connect();
    }

    // Browsers allow a few connections to a portal without HTTP/2: hidden tabs give theirs back.
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hiding);
      if (document.hidden) hiding = setTimeout(() => { source.close(); hiding = -1; }, HIDDEN_MS);
      else if (hiding === -1 && !isDone) connect();
    });

    async function pages(query, use) {
      let offset = 0;
      for (;;) {
        const answer = await api(`${url}?offset=${offset}&${new URLSearchParams(query)}`);
        if (!answer.ok) return say((await answer.json()).message);
        const page = await answer.json();
        if (use(page) || page.next_offset === offset) return null;
        offset = page.next_offset;
      }
    }

    let turn = 0;
    async function search(words) {
      const own = ++turn;
      matches.hidden = !words;
      text.hidden = Boolean(words);
      find("count").textContent = "";
      if (!words) return scroll();
      const matching = new Lines(matches);
      matching.clear();
      let count = 0;
      const query = { search: words, ...(attempt ? { attempt_number: attempt } : {}) };
      await pages(query, (page) => {
        if (own !== turn) return true;
        matching.append(page.lines.slice(0, MAX_MATCHES - count));
        count += page.lines.length;
        find("count").textContent = count >= MAX_MATCHES ? `First ${MAX_MATCHES} lines` : `${count} ${count === 1 ? "line" : "lines"}`;
        return count >= MAX_MATCHES;
      });
      return null;
    }

    async function showAttempt(number) {
      if (number === panel.dataset.logLatest) return restart();
      source?.close();
      isDone = true;
      live.clear();
      attempt = Number(number);
      shown = 0;
      find("earlier").hidden = true;
      await pages({ attempt_number: number }, (page) => {
        live.append(page.lines);
        shown += page.lines.length;
        return attempt !== Number(number);
      });
      return say(shown ? `Attempt ${number}, complete` : `Attempt ${number} has no output`);
    }

    let typing = 0;
    find("search").addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => search(event.target.value.trim()), 300);
    });
    find("earlier").addEventListener("click", () => { tail *= 8; following.checked = false; restart(); });
    find("times").addEventListener("change", (event) => panel.classList.toggle("vd-log-times", event.target.checked));
    find("stream").addEventListener("change", (event) => {
      panel.classList.toggle("vd-log-no-stderr", event.target.value === "stdout");
      panel.classList.toggle("vd-log-no-stdout", event.target.value === "stderr");
      const download = new URL(find("download").href);
      if (event.target.value) download.searchParams.set("stream", event.target.value);
      else download.searchParams.delete("stream");
      find("download").href = download;
      scroll();
    });
    find("attempt")?.addEventListener("change", (event) => {
      const download = new URL(find("download").href);
      download.searchParams.set("attempt_number", event.target.value);
      find("download").href = download;
      showAttempt(event.target.value);
    });
    find("member")?.addEventListener("change", (event) => location.assign(event.target.value));
    text.addEventListener("wheel", (event) => { if (event.deltaY < 0) following.checked = false; }, { passive: true });
    following.addEventListener("change", scroll);
    connect();
  }

  document.querySelectorAll("[data-log]").forEach(startLog);
})();
