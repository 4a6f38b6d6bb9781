// The terminal of a job, over a WebSocket: the first byte of a message is its channel.
(() => {
  "use strict";
  const STDIN = 0, STATUS = 3, RESIZE = 4;
  const THEME = {
    background: "#12151b", foreground: "#d5dbe6", cursor: "#d5dbe6", selectionBackground: "#3a4a6b",
    black: "#3b4252", red: "#ff7b72", green: "#5fd38a", yellow: "#e5c07b", blue: "#79a8ff", magenta: "#d2a8ff", cyan: "#76d7e8", white: "#d5dbe6",
    brightBlack: "#8b94a5", brightRed: "#ffa198", brightGreen: "#7ee8a5", brightYellow: "#f2d48f", brightBlue: "#a5c5ff", brightMagenta: "#e2c5ff", brightCyan: "#9fe8f5", brightWhite: "#ffffff",
  };
  const panel = document.querySelector("[data-shell]");
  const find = (name) => panel.querySelector(`[data-shell-${name}]`);
  const reconnect = find("connect");

  // The page's policy allows the style elements of xterm.js by their nonce.
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    const element = create(name, options);
    if (name === "style") element.nonce = panel.dataset.nonce;
    return element;
  };

  const terminal = new window.Terminal({
    fontFamily: getComputedStyle(panel).getPropertyValue("--bs-font-monospace"),
    fontSize: 13, lineHeight: 1.2, scrollback: 10000, theme: THEME, cursorBlink: true,
  });
  const fit = new window.FitAddon.FitAddon();
  terminal.loadAddon(fit);
  terminal.open(find("screen"));
  fit.fit();
  let socket;

  function say(text, isOpen) {
    find("state").textContent = text;
    reconnect.hidden = isOpen;
  }

  function send(channel, body) {
    if (socket?.readyState !== WebSocket.OPEN) return;
    const data = new Uint8Array(body.length + 1);
    data[0] = channel;
    data.set(body, 1);
    socket.send(data);
  }

  function text(channel, words) {
    send(channel, new TextEncoder().encode(words));
  }

  function connect() {
    const url = new URL(panel.dataset.shell, location.href.replace(/^http/, "ws"));
    url.search = new URLSearchParams({ terminal: "true", columns: terminal.cols, rows: terminal.rows });
    let ending = "The connection was lost";
    say("Connecting…", true);
    socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", (event) => {
      const data = new Uint8Array(event.data);
      if (data[0] === STATUS) {
        const status = JSON.parse(new TextDecoder().decode(data.subarray(1)));
        ending = status.message || `Ended with exit code ${status.exit_code}`;
        return;
      }
      if (find("state").textContent) say("Connected", true);
      terminal.write(data.subarray(1));
    });
    socket.addEventListener("close", () => {
      say(ending, false);
      terminal.write("\r\n");
      reconnect.focus();
    });
    terminal.focus();
  }

  terminal.onData((words) => text(STDIN, words));
  terminal.onBinary((words) => send(STDIN, Uint8Array.from(words, (character) => character.charCodeAt(0))));
  terminal.onResize(({ cols, rows }) => text(RESIZE, JSON.stringify({ columns: cols, rows })));
  terminal.attachCustomKeyEventHandler((event) => {
    const leaves = event.key === "Escape" && event.shiftKey;
    if (leaves) document.querySelector(".vd-tabs a, nav a")?.focus();
    return !leaves;
  });
  new ResizeObserver(() => fit.fit()).observe(find("screen"));
  reconnect.addEventListener("click", connect);
  connect();
})();
