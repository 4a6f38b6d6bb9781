// Upload of a few small files from the browser: as one tar archive, with its progress.
(() => {
  "use strict";
  const place = document.querySelector("[data-upload]");
  if (!place) return;
  const status = place.querySelector("[data-upload-status]");
  const bar = place.querySelector("progress");
  const inputs = Array.from(place.querySelectorAll("input[type=file]"));
  const maxBytes = Number(place.dataset.maxBytes);
  const maxFiles = Number(place.dataset.maxFiles);
  const encoder = new TextEncoder();
  const BLOCK = 512;

  function show(text, isError = false) {
    status.textContent = text;
    status.classList.toggle("vd-error", isError);
  }

  // A header of the ustar format; sizes and times are octal digits.
  function header(name, size, type) {
    const block = new Uint8Array(BLOCK);
    const put = (text, start) => block.set(encoder.encode(text), start);
    const octal = (number, digits) => `${number.toString(8).padStart(digits, "0")}\0`;
    block.set(encoder.encode(name).slice(0, 100), 0);
    put(octal(0o644, 7), 100);
    put(octal(0, 7), 108);
    put(octal(0, 7), 116);
    put(octal(size, 11), 124);
    put(octal(0, 11), 136);
    put("        ", 148);
    put(type, 156);
    put("ustar\u000000", 257);
    const sum = block.reduce((total, byte) => total + byte, 0);
    put(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
    return block;
  }

  const padding = (size) => new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);

  // A record of pax, whose length counts its own digits: for names of any length in UTF-8.
  function nameRecord(name) {
    const rest = encoder.encode(` path=${name}\n`).length;
    let length = rest + 1;
    while (String(length).length + rest !== length) length = String(length).length + rest;
    return encoder.encode(`${length} path=${name}\n`);
  }

  function archive(files) {
    const parts = [];
    for (const [name, file] of files) {
      const record = nameRecord(name);
      parts.push(header("pax", record.length, "x"), record, padding(record.length));
      parts.push(header(name, file.size, "0"), file, padding(file.size));
    }
    parts.push(new Uint8Array(2 * BLOCK));
    return new Blob(parts);
  }

  // The folder that was chosen is not part of the paths in it.
  function named(list) {
    return Array.from(list, (file) => {
      const path = file.webkitRelativePath;
      return [path ? path.slice(path.indexOf("/") + 1) : file.name, file];
    });
  }

  function send(url, body) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("PUT", url);
      request.setRequestHeader("Content-Type", "application/x-tar");
      request.upload.addEventListener("progress", (event) => {
        if (event.lengthComputable) bar.value = event.loaded / event.total;
        if (event.loaded === event.total) show("Checking the files…");
      });
      request.addEventListener("load", () => {
        if (request.status < 300) resolve();
        else reject(new Error(messageOf(request.responseText)));
      });
      request.addEventListener("error", () => reject(new Error("The connection broke. Try again.")));
      request.send(body);
    });
  }

  function messageOf(text) {
    try {
      return JSON.parse(text).message;
    } catch {
      return "The upload failed. Try again.";
    }
  }

  async function upload(list) {
    const files = named(list);
    if (!files.length) return;
    const body = archive(files);
    if (files.length > maxFiles || body.size > maxBytes) {
      show(`These are ${files.length} files with ${(body.size / 2 ** 20).toFixed(1)} MiB: too much for a browser. Use the command below.`, true);
      return;
    }
    const token = document.querySelector('meta[name="csrf-token"]').content;
    inputs.forEach((input) => (input.disabled = true));
    bar.hidden = false;
    bar.value = 0;
    show(`Uploading ${files.length} ${files.length === 1 ? "file" : "files"}…`);
    let version = null;
    try {
      const answer = await fetch(`/api/v1/datasets/${place.dataset.upload}/versions`, {
        method: "POST",
        credentials: "same-origin",
        headers: { "Content-Type": "application/json", "X-CSRFToken": token },
        body: "{}",
      });
      if (!answer.ok) throw new Error(messageOf(await answer.text()));
      version = await answer.json();
      await send(`/api/v1/dataset-versions/${version.id}/archive`, body);
      location.href = location.pathname;
    } catch (error) {
      show(error.message, true);
      bar.hidden = true;
      inputs.forEach((input) => (input.disabled = false));
      if (version) {
        fetch(`/api/v1/dataset-versions/${version.id}/cancel`, {
          method: "POST",
          credentials: "same-origin",
          headers: { "X-CSRFToken": token },
        });
      }
    }
  }

  for (const input of inputs) {
    input.addEventListener("change", () => {
      const list = Array.from(input.files);
      input.value = "";
      upload(list);
    });
  }
})();
