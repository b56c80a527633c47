// The page is complete without this script. The script sorts, filters and copies tables.
(() => {
  "use strict";
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  const make = (name, attributes, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };

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
      });
    });
    if (rows.length < 5) continue;
    const input = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const shownRows = make("output", { "aria-live": "polite" });
    const name = table.closest(".scroll").getAttribute("aria-label");
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
    };
    input.addEventListener("input", apply);
    apply();
  }

  // Tables as text, in their order and with their filter, with all digits.
  const words = (cell) => {
    const copy = cell.cloneNode(true);
    all("p, div", copy).forEach((block) => block.append(" "));
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  const headRows = (table) => (table.tHead ? [...table.tHead.rows].map((row) => [...row.cells]) : []);
  const bodyRows = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const heads = (table) => {
    const rows = headRows(table);
    const last = (rows[rows.length - 1] || []).map(words);
    if (rows.length < 2) return last;
    const groups = rows[0].flatMap((cell) => Array(cell.colSpan).fill(words(cell)));
    return last.map((head, i) => (groups[i] ? `${groups[i]}: ${head}` : head));
  };
  // A spreadsheet would compute a text that begins like a formula; a number such as -1.5 is none.
  const text = (some) => (/^[=@+-]./.test(some) && Number.isNaN(Number(some)) ? `'${some}` : some);
  const full = (cell) => cell.dataset.value || (cell.textContent === "\u2014" ? "" : text(words(cell)));
  const lines = (rows) => rows.map((row) => `${row}\n`).join("");
  const tsv = (table) =>
    lines([heads(table).map(text), ...bodyRows(table).map((row) => [...row.cells].map(full))].map((row) => row.join("\t")));

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

  for (const table of all("table")) {
    const scroll = table.closest(".scroll");
    const status = make("output", { "aria-live": "polite" });
    const button = make("button", { type: "button", "aria-label": `Copy: ${scroll.getAttribute("aria-label")}` }, "Copy TSV");
    button.addEventListener("click", async () => {
      try {
        await copy(tsv(table));
        status.textContent = "Copied, with all digits";
      } catch {
        status.textContent = "This browser does not allow it";
      }
      setTimeout(() => (status.textContent = ""), 5000);
    });
    scroll.after(make("div", { class: "tools" }, button, " ", status));
  }
})();
