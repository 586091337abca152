for (const heading of document.querySelectorAll("th button")) {
  heading.addEventListener("click", () => {
    const cell = heading.parentElement, body = cell.closest("table").tBodies[0], place = cell.cellIndex;
    const up = cell.getAttribute("aria-sort") === "descending";
    const value = (row) => row.cells[place].dataset.v ?? row.cells[place].textContent;
    const order = (a, b) => (a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a.localeCompare(b));
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b)));
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  });
}
