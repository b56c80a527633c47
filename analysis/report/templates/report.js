// The page is complete without this script. The script sorts, filters and copies tables, saves figures, folds all sections,
// and gives each number its place in the files and an address.
(() => {
  "use strict";
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  const make = (name, attributes, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };

  // The bar shows the place of the number under the mouse, else of the number with the focus.
  const bar = document.getElementById("number");
  const unit = (column) => (/_per_s$/.test(column) ? " 1/s" : /_s$/.test(column) ? " s" : "");
  const showPlace = (cell) => {
    all(".pointed").forEach((other) => other.classList.remove("pointed"));
    bar.hidden = !cell;
    if (!cell) return;
    const { table, row, column, value } = cell.dataset;
    bar.textContent = `tables/${table}.parquet row ${row}, ${column} = ${value}${unit(column)}`;
    cell.classList.add("pointed");
  };
  const numberAt = (target) => target && target.closest && target.closest("[data-column]");
  const focused = () => numberAt(document.activeElement);
  document.addEventListener("mouseover", (event) => showPlace(numberAt(event.target) || focused()));
  document.addEventListener("focusin", () => showPlace(focused()));
  document.addEventListener("focusout", () => showPlace(null));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !bar.hidden) {
      const cell = focused();
      if (cell) cell.blur();
      showPlace(null);
    }
  });

  // Each table is one tab stop; the arrows move from number to number.
  const numbers = (row) => all("td[data-column]", row);
  const shown = (body) => [...body.rows].filter((row) => !row.hidden && numbers(row).length);
  const stop = (table) => {
    all("td[tabindex='0']", table).forEach((cell) => cell.setAttribute("tabindex", "-1"));
    const first = shown(table.tBodies[0])[0];
    if (first) numbers(first)[0].setAttribute("tabindex", "0");
  };
  const go = (cell) => {
    all("td[tabindex='0']", cell.closest("table")).forEach((other) => other.setAttribute("tabindex", "-1"));
    cell.setAttribute("tabindex", "0");
    cell.focus();
  };
  const beside = (cell, key) => {
    const row = cell.parentElement;
    const line = numbers(row);
    if (key === "Home") return line[0];
    if (key === "End") return line[line.length - 1];
    if (key === "ArrowLeft" || key === "ArrowRight") return line[line.indexOf(cell) + (key === "ArrowRight" ? 1 : -1)];
    const rows = shown(row.parentElement);
    const step = key === "ArrowDown" ? 1 : -1;
    for (let at = rows.indexOf(row) + step; rows[at]; at += step) {
      const same = numbers(rows[at]).find((other) => other.cellIndex === cell.cellIndex);
      if (same) return same;
    }
    return undefined;
  };
  all("span[data-column]").forEach((number) => number.setAttribute("tabindex", "0"));
  for (const table of all("table")) {
    if (!table.tBodies.length || !numbers(table.tBodies[0]).length) continue;
    stop(table);
    table.addEventListener("click", (event) => {
      const cell = numberAt(event.target);
      if (cell && cell.tagName === "TD") go(cell);
    });
    table.addEventListener("keydown", (event) => {
      const cell = numberAt(event.target);
      if (!cell || !/^(Arrow|Home$|End$)/.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const next = beside(cell, event.key);
      if (next) go(next);
    });
  }

  // Numbers sort by their full value, texts with numbers in natural order (s9 before s10); missing values are last.
  const compare = (index, down) => (a, b) => {
    const [x, y] = [a.cells[index], b.cells[index]];
    const [v, w] = [x.dataset.value, y.dataset.value];
    if (v !== undefined && w !== undefined) return (v - w) * (down ? -1 : 1);
    if ((v === undefined) !== (w === undefined)) return v === undefined ? 1 : -1;
    return x.textContent.localeCompare(y.textContent, undefined, { numeric: true }) * (down ? -1 : 1);
  };
  for (const table of all("table[data-sorts]")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    if (rows.length < 2) continue;
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, index) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const was = head.getAttribute("aria-sort");
        const now = was === "ascending" ? "descending" : was === "descending" ? null : "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        if (now) head.setAttribute("aria-sort", now);
        body.append(...(now ? [...rows].sort(compare(index, now === "descending")) : rows));
        stop(table);
      });
    });
    if (rows.length < 5) continue;
    const input = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const shownRows = make("output", { "aria-live": "polite" });
    const name = table.caption.textContent.trim();
    const filter = make("p", { class: "filter" }, make("label", {}, "Rows with ", input), " ", shownRows);
    input.setAttribute("aria-label", `Rows with these words in ${name}`);
    table.closest(".scroll").before(filter);
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        count += row.hidden ? 0 : 1;
      }
      shownRows.textContent = `${count} of ${rows.length} rows`;
      stop(table);
    };
    input.addEventListener("input", apply);
    apply();
  }

  // A click on a number, or Enter, puts its address in the address bar.
  const idOf = (cell) => {
    const { table, row, column } = cell.dataset;
    const same = `[id][data-table="${table}"][data-row="${row}"][data-column="${column}"]`;
    return cell.id || (document.querySelector(same) || {}).id;
  };
  const address = (cell) => {
    const id = cell && idOf(cell);
    if (!id) return;
    showPlace(cell);
    try {
      history.replaceState(null, "", `#${id}`);
      bar.append(" (linked in the address bar)");
    } catch {
      // A page inside another, such as Snakemake's report, has no address of its own.
    }
  };
  document.addEventListener("click", (event) => address(numberAt(event.target)));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter") address(focused());
  });

  // An address unfolds its target; a number gets the focus in the middle of the window.
  const arrive = () => {
    let target = null;
    try {
      target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    } catch {
      return; // no address that the page could have
    }
    if (!target) return;
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    if (target.tagName === "TD") go(target);
    target.scrollIntoView(target.dataset.column ? { block: "center", inline: "center" } : {});
  };
  window.addEventListener("hashchange", arrive);

  const contents = document.querySelector(".contents");
  const parts = all("details.part");
  const fold = make("button", { type: "button" }, "Fold all sections");
  const anyOpen = () => parts.some((part) => part.open);
  const relabel = () => (fold.textContent = anyOpen() ? "Fold all sections" : "Unfold all sections");
  parts.forEach((part) => part.addEventListener("toggle", relabel));
  fold.addEventListener("click", () => {
    const open = !anyOpen();
    parts.forEach((part) => (part.open = open));
    relabel();
  });
  if (parts.length) contents.append(fold);
  if (matchMedia("(min-width: 102rem)").matches) contents.querySelector("details").open = true;

  // Tables as text, in their order and with their filter: TSV with all digits, LaTeX as shown.
  const words = (cell) => {
    const copy = cell.cloneNode(true);
    all("details", copy).forEach((more) => more.remove());
    all("p, div", copy).forEach((block) => block.append(" "));
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  const headRows = (table) => (table.tHead ? [...table.tHead.rows].map((row) => [...row.cells]) : []);
  const bodyRows = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const heads = (table) => {
    const rows = headRows(table);
    const last = (rows[rows.length - 1] || []).map(words);
    if (rows.length < 2) return last;
    const groups = rows[0].slice(1).flatMap((cell) => Array(cell.colSpan).fill(words(cell)));
    return [words(rows[0][0]), ...last.map((head, i) => `${groups[i]}: ${head}`)];
  };
  const full = (cell) => cell.dataset.value || (cell.textContent === "\u2014" ? "" : words(cell));
  const lines = (rows) => rows.map((row) => `${row}\n`).join("");
  const tsv = (table) =>
    lines([heads(table), ...bodyRows(table).map((row) => [...row.cells].map(full))].map((row) => row.join("\t")));

  const SIGNS = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", $: "\\$", "&": "\\&", "%": "\\%", "#": "\\#", _: "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}",
    "\u00d7": "$\\times$", "\u2212": "$-$", "\u00b1": "$\\pm$", "\u2014": "---", "\u2026": "\\ldots{}",
  };
  const escaped = (text) => [...text].map((sign) => SIGNS[sign] || sign).join("");
  const inset = (cell) => {
    const depth = cell.tagName === "TH" && (/\bd([1-9])\b/.exec(cell.className) || [])[1];
    return depth ? `\\hspace{${depth}em}` : "";
  };
  const texLine = (cells) => `${cells.join(" & ")} \\\\`;
  const tex = (table, name) => {
    const rows = headRows(table);
    const body = bodyRows(table).map((row) => [...row.cells]);
    const numeric = table.classList.contains("numbers");
    const sides = (body[0] || []).map((cell, i) => (i && numeric && !cell.classList.contains("text") ? "r" : "l"));
    const head = rows.length ? [texLine(rows[rows.length - 1].map((cell) => escaped(words(cell))))] : [];
    if (rows.length > 1) {
      const rules = [];
      let at = 2;
      const groups = rows[0].slice(1).map((cell) => {
        rules.push(`\\cmidrule(lr){${at}-${at + cell.colSpan - 1}}`);
        at += cell.colSpan;
        return `\\multicolumn{${cell.colSpan}}{c}{${escaped(words(cell))}}`;
      });
      head.splice(0, 1, texLine(["", ...groups]), rules.join(" "), `${escaped(words(rows[0][0]))} & ${head[0]}`);
    }
    const comment = `% ${name} (needs \\usepackage{booktabs})`;
    const inside = body.map((cells) => texLine(cells.map((cell) => inset(cell) + escaped(words(cell)))));
    return lines([comment, `\\begin{tabular}{${sides.join("")}}`, "\\toprule", ...head, "\\midrule", ...inside,
      "\\bottomrule", "\\end{tabular}"]);
  };

  // Only a page from https may use the clipboard; elsewhere the script copies a selected text field.
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = make("textarea", { "aria-label": "The table as text" });
      const before = document.activeElement;
      field.value = text;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      before.focus();
      if (!done) throw new Error("no clipboard");
    }
  };

  // Figures as files, equal to those in figures/: ink on white, from the page's drawing.
  const INK = "#1b1f24";
  const FONT = "'Noto Sans CJK JP', 'Noto Sans CJK SC', 'Noto Sans', sans-serif";
  const standalone = (svg) => {
    const file = svg.cloneNode(true);
    ["role", "aria-label"].forEach((name) => file.removeAttribute(name));
    const drawing = file.outerHTML;
    file.setAttribute("font-family", /[^\0-\u2e80]/u.test(drawing) ? FONT : "sans-serif");
    if (drawing.includes("url(#hatch)")) file.prepend(document.querySelector("svg.shared defs").cloneNode(true));
    return new XMLSerializer().serializeToString(file).replaceAll('"currentColor"', `"${INK}"`);
  };
  const save = (name, blob) => {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  const saveSvg = (name, svg) => save(`${name}.svg`, new Blob([standalone(svg)], { type: "image/svg+xml" }));
  const savePng = async (name, svg) => {
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(svg))}`;
    await image.decode();
    const [width, height] = ["width", "height"].map((side) => 2 * Number(svg.getAttribute(side)));
    const canvas = make("canvas", { width, height });
    const paper = canvas.getContext("2d");
    paper.fillStyle = "white";
    paper.fillRect(0, 0, width, height);
    paper.drawImage(image, 0, 0, width, height);
    save(`${name}.png`, await new Promise((done) => canvas.toBlob(done, "image/png")));
  };

  // The controls under a table or a figure: [label, action, confirmation].
  const tools = (name, controls) => {
    const status = make("output", { "aria-live": "polite" });
    const buttons = controls.map(([label, act, done]) => {
      const button = make("button", { type: "button", "aria-label": `${label}: ${name}` }, label);
      button.addEventListener("click", async () => {
        try {
          await act();
          status.textContent = done;
        } catch {
          status.textContent = "This browser does not allow it";
        }
        setTimeout(() => (status.textContent = ""), 5000);
      });
      return button;
    });
    return make("div", { class: "tools" }, ...buttons, status);
  };
  for (const table of all("table")) {
    const scroll = table.closest(".scroll");
    const name = scroll.getAttribute("aria-label").replace(/\s+/g, " ");
    scroll.after(tools(name, [
      ["Copy TSV", () => copy(tsv(table)), "Copied, with all digits"],
      ["Copy LaTeX", () => copy(tex(table, name)), "Copied, as shown"],
    ]));
  }
  for (const figure of all("figure[id]")) {
    const [svg, name] = [figure.querySelector("svg"), figure.id.replace("figure-", "")];
    figure.append(tools(figure.querySelector(".scroll").getAttribute("aria-label"), [
      ["Save SVG", () => saveSvg(name, svg), "Saved"],
      ["Save PNG", () => savePng(name, svg), "Saved"],
    ]));
  }
  arrive();
})();
