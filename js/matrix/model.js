// The data of a heatmap: values, labels and scale.

import { Payload } from "../core/payload.js";
import { createColorIndexer } from "../core/scale.js";
import { formatNumber, isLabelVisible, isTick, makeVisible } from "../core/text.js";

/**
 * The description of a heatmap from `views/matrix.py`.
 *
 * @typedef {object} MatrixDescription
 * @property {string} key
 * @property {string} labels digest of all labels
 * @property {string[]} rows
 * @property {string[] | null} columns null if they equal the rows
 * @property {(number | null)[] | null} rowPositions
 * @property {(number | null)[] | null} columnPositions
 * @property {boolean} rowRuler whether the rows are residues and their positions are residue numbers
 * @property {boolean} columnRuler
 * @property {string} rowAxis
 * @property {string} columnAxis
 * @property {string} caption
 * @property {number} decimals
 * @property {boolean} square whether cells are as wide as high
 * @property {boolean} whole whether all cells are visible at first, however small
 * @property {[number, number][]} [marked] rows and columns of outlined cells
 * @property {string} fileName
 * @property {[number, number] | null} pinned row and column
 * @property {number} revision of the pin
 * @property {number} min
 * @property {number} max
 */

/** @typedef {ReturnType<typeof unpackMatrix>} MatrixModel */

/**
 * A row and a column. For a row label, the column is null; for a column label, the row.
 *
 * @typedef {{row: number | null, column: number | null}} Spot
 */

/** @typedef {{row: number, column: number}} Cell */

/** @param {Uint8Array} bytes */
export function unpackMatrix(bytes) {
  /** @type {Payload<MatrixDescription & import("../core/scale.js").Legend>} */
  const payload = new Payload(bytes);
  const { description } = payload;
  const columns = description.columns ?? description.rows;
  return {
    ...description,
    marked: description.marked ?? [],
    rowLabels: description.rows.map(makeVisible),
    columnLabels: columns.map(makeVisible),
    /** Residue number of each row (null for a special token), or null if the rows are not residues. */
    rowNumbers: description.rowRuler ? description.rowPositions : null,
    columnNumbers: description.columnRuler ? description.columnPositions : null,
    rowCount: description.rows.length,
    columnCount: columns.length,
    lightTable: payload.numbers("light", Uint8Array),
    darkTable: payload.numbers("dark", Uint8Array),
    /** Values of the cells, [row, column] */
    values: payload.numbers("values", Float32Array),
    colorIndex: createColorIndexer(description.scale),
  };
}

/**
 * @param {MatrixModel} model
 * @param {number} row
 * @param {number} column
 */
export function getValue(model, row, column) {
  return model.values[row * model.columnCount + column];
}

/**
 * @param {Spot | null} spot
 * @returns {spot is Cell}
 */
export function isCell(spot) {
  return spot !== null && spot.row !== null && spot.column !== null;
}

/** @typedef {Pick<MatrixModel, "rowLabels" | "columnLabels" | "rowNumbers" | "columnNumbers">} Labels */

/**
 * Returns the label of a row or a column. The label of a residue includes its number, as in "K10".
 *
 * @param {Labels} model
 * @param {"row" | "column"} axis
 * @param {number} index
 */
export function getName(model, axis, index) {
  const numbers = axis === "row" ? model.rowNumbers : model.columnNumbers;
  const labels = axis === "row" ? model.rowLabels : model.columnLabels;
  return `${labels[index]}${numbers?.[index] ?? ""}`;
}

/**
 * Returns the tick label after thinning, or "" for none. A thinned axis shows only index numbers.
 *
 * @param {Labels} model
 * @param {"row" | "column"} axis
 * @param {number} index
 * @param {number} labelStep
 */
export function getAxisText(model, axis, index, labelStep) {
  const numbers = axis === "row" ? model.rowNumbers : model.columnNumbers;
  const label = (axis === "row" ? model.rowLabels : model.columnLabels)[index];
  if (numbers && labelStep > 1) return isTick(numbers[index], labelStep) ? String(numbers[index]) : "";
  return isLabelVisible(label, index, labelStep) ? label : "";
}

/**
 * Returns the name of a row or a column, and the position that distinguishes repeated labels.
 *
 * @param {MatrixModel} model
 * @param {"row" | "column"} axis
 * @param {number} index
 */
export function getLabel(model, axis, index) {
  const isRuler = axis === "row" ? model.rowRuler : model.columnRuler;
  const positions = axis === "row" ? model.rowPositions : model.columnPositions;
  return { label: getName(model, axis, index), position: isRuler || !positions ? null : positions[index] };
}

/**
 * Returns the description of a cell, such as "ground (11) → left (9): 0.6486".
 *
 * @param {MatrixModel} model
 * @param {Cell} cell
 */
export function describeCell(model, { row, column }) {
  const names = [getLabel(model, "row", row), getLabel(model, "column", column)];
  const [from, to] = names.map(({ label, position }) =>
    position === null ? label : `${label} (${position})`,
  );
  return `${from} → ${to}: ${formatNumber(getValue(model, row, column), model.decimals)}`;
}
