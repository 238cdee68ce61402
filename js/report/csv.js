// A report's table as CSV, at full precision.

/**
 * @typedef {string | number | boolean | null} Cell
 * @typedef {{columns: {name: string, cells: Cell[]}[]}} Table
 */

/** @param {Table} table */
export function formatCsv({ columns }) {
  const rows = columns[0]?.cells.map((_, row) => columns.map(({ cells }) => cells[row])) ?? [];
  return [columns.map(({ name }) => name), ...rows]
    .map((row) => `${row.map(quoteCell).join(",")}\n`)
    .join("");
}

/** @param {Cell} cell */
function quoteCell(cell) {
  const text = cell === null ? "" : String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
