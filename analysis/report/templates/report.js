// Without this script the page is whole; with it tables sort and filter, and a number says where in the files it stands.
(() => {
  "use strict";
  const all = (selector, within) => [...(within || document).querySelectorAll(selector)];
  const make = (name, attributes, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };

  // Where a number stands: told for the cell under the mouse, else for the one that has the focus.
  const bar = document.getElementById("number");
  const unit = (column) => (/_s$/.test(column) ? " s" : "");
  const tell = (cell) => {
    all(".told").forEach((told) => told.classList.remove("told"));
    bar.hidden = !cell;
    if (!cell) return;
    const { table, row, column, value } = cell.dataset;
    bar.textContent = `tables/${table}.parquet row ${row}, ${column} = ${value}${unit(column)}`;
    cell.classList.add("told");
  };
  const numberAt = (target) => target && target.closest && target.closest("[data-column]");
  const focused = () => numberAt(document.activeElement);
  document.addEventListener("mouseover", (event) => tell(numberAt(event.target) || focused()));
  document.addEventListener("focusin", () => tell(focused()));
  document.addEventListener("focusout", () => tell(null));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !bar.hidden) {
      const cell = focused();
      if (cell) cell.blur();
      tell(null);
    }
  });

  // One tab stop in each table; the arrows go from number to number.
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

  // Numbers by their full value, words as people count (s9 before s10); what is missing comes last.
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
    const told = make("output", { "aria-live": "polite" });
    const name = table.caption.textContent.trim();
    const filter = make("p", { class: "filter" }, make("label", {}, "Rows with ", input), " ", told);
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
      told.textContent = `${count} of ${rows.length} rows`;
      stop(table);
    };
    input.addEventListener("input", apply);
    apply();
  }
})();
