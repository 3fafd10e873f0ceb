"use strict";
// Sorts and filters what is already on the page. Without it the page is complete, only still.
(() => {
  const form = document.getElementById("filter");
  const print = (open) => {
    for (const one of document.querySelectorAll("details:not([hidden])")) {
      if (open && !one.open) { one.open = true; one.dataset.closed = ""; }
      else if (!open && "closed" in one.dataset) { one.open = false; delete one.dataset.closed; }
    }
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  const reveal = () => {
    const target = /^#w\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
    if (target) { target.parentElement.hidden = false; target.parentElement.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  if (!form) return;

  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const list = document.getElementById("list");
  const details = [...list.children];
  const entries = [...body.rows].map((row, index) => ({
    row, index, detail: details[index],
    text: row.cells[1].textContent.toLowerCase(),
  }));

  // At first only the worst few are shown; whatever is found is shown whole.
  const first = 50;
  const more = document.getElementById("more");
  let whole = entries.length <= first;
  let order = entries;
  const find = document.getElementById("find");
  const found = document.getElementById("found");
  const show = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = new Set([...form.querySelectorAll("input[name=verdict]:checked")].map((box) => box.value));
    let count = 0, visible = 0;
    for (const { row, detail, text } of order) {
      const match = kinds.has(row.dataset.verdict) && words.every((word) => text.includes(word));
      count += match;
      const shown = match && (whole || count <= first);
      visible += shown;
      row.hidden = detail.hidden = !shown;
    }
    const of = count === entries.length ? `${count}` : `${count} found of ${entries.length}`;
    found.textContent = visible < count ? `${visible} shown, ${of} workloads` : `${of} workloads`;
    more.hidden = visible === count;
    more.firstChild.textContent = `Show all ${count}`;
  };
  more.firstChild.addEventListener("click", () => { whole = true; show(); });
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());

  // Sorting: a button in each header; empty figures stay last either way.
  const compare = (column, numeric, sign) => (a, b) => {
    const x = a.row.cells[column].dataset.v, y = b.row.cells[column].dataset.v;
    if (x === "" || y === "") return (x === "") - (y === "") || a.index - b.index;
    const difference = numeric ? (x === y ? 0 : Number(x) - Number(y)) : x.localeCompare(y);
    return sign * difference || a.index - b.index;
  };
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const numeric = header.dataset.sort === "number";
    const button = document.createElement("button");
    button.type = "button";
    // Chromium does not repeat a printed header that holds a control: the style sheet prints this label in its place.
    header.dataset.label = header.textContent;
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const [once, again] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
      const direction = header.getAttribute("aria-sort") === once ? again : once;
      for (const cell of headers) cell.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", direction);
      order = [...entries].sort(compare(column, numeric, direction === "ascending" ? 1 : -1));
      body.append(...order.map((entry) => entry.row));
      list.append(...order.map((entry) => entry.detail));
      show();
    });
  });

  form.hidden = false;
  show();
  reveal();
})();
