// Fills the panes of an exported file from embedded bytes, after their SHA-256 matched the embedded index.
"use strict";
(() => {
  const INDEX = "artifact_index.json";
  const SHOWN = 65536;
  const SYMBOLS = { passed: "✓", ok: "✓", failed: "✗", unknown: "○" };
  const source = document.getElementById("proofbox-evidence");
  if (!source) return;

  // The text of a terminal, as in viewer/ansi.py: only SGR sequences style it, everything else is made visible.
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\u{e0100}-\u{e01ef}]/gu;
  const STYLES = { 1: "bold", 2: "faint", 3: "italic", 4: "underline", 7: "inverse" };
  const ENDS = { 22: ["bold", "faint"], 23: ["italic"], 24: ["underline"], 27: ["inverse"] };

  function printable(text) {
    return text.replace(HIDDEN, (char) => {
      if (char === "\n" || char === "\t") return char;
      const point = char.codePointAt(0), hex = point.toString(16);
      if (point < 0x100) return "\\x" + hex.padStart(2, "0");
      return point < 0x10000 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
    });
  }

  function styled(text) {
    const found = [], on = new Set();
    let foreground = "", background = "", position = 0;
    text = text.replace(/\r\n/g, "\n");
    const keep = (end) => {
      if (end > position) found.push([[...[...on].sort(), foreground, background].filter(Boolean).join(" "), printable(text.slice(position, end))]);
    };
    for (const match of text.matchAll(/\x1b\[([0-9;]{0,64})m/g)) {
      keep(match.index);
      position = match.index + match[0].length;
      const codes = match[1].split(";").map(Number);
      while (codes.length) {
        const code = codes.shift();
        if (code === 0) { on.clear(); foreground = background = ""; }
        else if (STYLES[code]) on.add(STYLES[code]);
        else if (ENDS[code]) ENDS[code].forEach((each) => on.delete(each));
        else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) foreground = "fg" + (code % 10 + (code >= 90 ? 8 : 0));
        else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) background = "bg" + (code % 10 + (code >= 100 ? 8 : 0));
        else if (code === 39) foreground = "";
        else if (code === 49) background = "";
        else if (code === 38 || code === 48) {
          const kind = codes.shift(), values = codes.splice(0, { 5: 1, 2: 3 }[kind] || 0);
          const name = kind === 5 && values.length && values[0] < 16 ? String(values[0]) : "";
          if (code === 38) foreground = name && "fg" + name; else background = name && "bg" + name;
        }
      }
    }
    keep(text.length);
    return found;
  }

  function diffed(text) {
    return text.replace(/\n$/, "").split("\n").map((line) => {
      const kind = /^(\+\+\+|---|diff )/.test(line) ? "file" : { "+": "add", "-": "del", "@": "hunk" }[line[0]] || "same";
      return [kind, printable(line) || " "];
    });
  }

  function show(element, text, kind) {
    const shown = text.length > SHOWN && !element.dataset.all ? text.slice(0, SHOWN) : text;
    const pieces = kind === "diff" ? diffed(shown) : styled(shown);
    element.replaceChildren(...pieces.map(([classes, piece]) => {
      if (!classes) return document.createTextNode(piece);
      const span = document.createElement("span");
      span.className = classes;
      span.textContent = piece;
      return span;
    }));
    if (shown.length < text.length) {
      const more = document.createElement("button");
      more.textContent = `Show all ${text.length} characters`;
      more.addEventListener("click", () => { element.dataset.all = "yes"; show(element, text, kind); });
      element.append(more);
    }
  }

  const hex = (buffer) => [...new Uint8Array(buffer)].map((each) => each.toString(16).padStart(2, "0")).join("");
  const decode = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const asText = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);

  // Compare every file with the index that lists it, from the outermost index inwards.
  async function check(bundle, known, problems) {
    let files = 0, absent = 0;
    const visit = async (prefix, bytes) => {
      for (const artifact of JSON.parse(asText(bytes)).artifacts) {
        const path = prefix + artifact.path, name = `${bundle.name}/${path}`;
        if (!Object.hasOwn(bundle.files, path)) { absent += 1; known.set(name, { absent: true }); continue; }
        const content = decode(bundle.files[path]);
        files += 1;
        const matches = hex(await crypto.subtle.digest("SHA-256", content)) === artifact.sha256;
        known.set(name, matches ? { bytes: content } : { wrong: true });
        if (!matches) problems.push(name);
        else if (path.endsWith("/" + INDEX)) await visit(path.slice(0, -INDEX.length), content);
      }
    };
    const top = decode(bundle.files[INDEX] || "");
    await visit("", top);
    return { files, absent };
  }

  function find(text, path, pointer) {
    let parts = pointer.split("/").slice(1), value;
    if (path.endsWith(".jsonl")) value = JSON.parse(text.split("\n")[Number(parts.shift())]);
    else value = JSON.parse(text);
    for (const part of parts) value = value[part];
    return typeof value === "string" ? value : JSON.stringify(value);
  }

  function fill(element, known) {
    const { bundle, path, pointer, kind } = element.dataset, entry = known.get(`${bundle}/${path}`);
    const refuse = (why) => { const note = document.createElement("span"); note.className = "wrong"; note.textContent = why; element.replaceChildren(note); };
    if (!entry || entry.wrong) return refuse(`not shown: ${path} does not match the embedded index`);
    if (entry.absent) return refuse(`not shown: ${path} was left out of this file`);
    let text;
    try {
      text = asText(entry.bytes);
      if (pointer) text = find(text, path, pointer);
    } catch (error) {
      return refuse(`not shown: ${path} cannot be read`);
    }
    if (kind !== "value") return show(element, text, kind);
    element.textContent = printable(text);
    const outcome = element.closest("[data-outcome]");
    if (outcome) {
      outcome.classList.replace("pending", SYMBOLS[text] ? text : "unknown");
      outcome.querySelector(".symbol").textContent = SYMBOLS[text] || "○";
    }
  }

  function verdict(element, state, words, detail) {
    element.className = `integrity ${state}`;
    const badge = document.createElement("span"), symbol = document.createElement("span");
    badge.className = `state ${state}`;
    symbol.className = "symbol";
    symbol.setAttribute("aria-hidden", "true");
    symbol.textContent = { valid: "✓", invalid: "✗", unknown: "○" }[state];
    badge.append(symbol, words);
    element.querySelector(".verdict").replaceChildren(badge);
    element.querySelector(".detail").textContent = detail;
  }

  function route(known) {
    const pages = [...document.querySelectorAll(".page")];
    let name = "";
    try { name = decodeURIComponent(location.hash.slice(1)); } catch (error) { name = ""; }
    const target = name ? document.getElementById(name) : null;
    const page = pages.find((each) => each.dataset.page === name) || target?.closest(".page") || pages[0];
    pages.forEach((each) => { each.hidden = each !== page; });
    if (page && !page.dataset.filled) {
      page.dataset.filled = "yes";
      page.querySelectorAll("[data-path]").forEach((each) => fill(each, known));
    }
    if (target) target.scrollIntoView();
    else window.scrollTo(0, 0);
  }

  async function start() {
    const proof = document.getElementById("proof"), known = new Map(), problems = [];
    const embedded = JSON.parse(source.textContent);
    if (!globalThis.crypto?.subtle) {
      verdict(proof, "unknown", "Not checked", "This browser offers no SHA-256 here, so no evidence is shown.");
    } else {
      let files = 0, absent = 0;
      for (const bundle of embedded.bundles) {
        try {
          const found = await check(bundle, known, problems);
          files += found.files;
          absent += found.absent;
        } catch (error) {
          problems.push(`${bundle.name}/${INDEX}`);
        }
      }
      const left = absent ? `; ${absent} files were left out` : "";
      if (problems.length) verdict(proof, "invalid", "Evidence does NOT match", `${problems.length} of ${files} embedded files differ from the index, the first: ${printable(problems[0])}`);
      else verdict(proof, "valid", "Embedded evidence matches its index", `${files} files, compared by your browser${left}. proofbox verify decides whether to trust it.`);
      document.querySelectorAll("[data-integrity]").forEach((each) => {
        const own = [...known].filter(([name]) => name.startsWith(each.dataset.integrity + "/"));
        const wrong = own.filter(([, entry]) => entry.wrong).length;
        const good = own.filter(([, entry]) => entry.bytes).length;
        if (wrong || !good) verdict(each, "invalid", "Evidence does NOT match", `${wrong} files of this attempt differ from the index`);
        else verdict(each, "valid", "Evidence matches its index", `${good} files of this attempt, compared by your browser`);
      });
    }
    route(known);
    window.addEventListener("hashchange", () => route(known));
    document.body.dataset.ready = "yes";
  }
  start();
})();
