// Computes the layout of a heatmap: cell size, space for the labels, and their angle and thinning.

import { computeLabelStep, computeRulerStep, isLabelVisible, measureWidest } from "../core/text.js";

/**
 * @typedef {import("./model.js").MatrixModel} MatrixModel
 * @typedef {import("../core/text.js").Measure} Measure
 * @typedef {import("../core/pen.js").Area} Area
 */

/**
 * The properties of a model that determine the layout.
 *
 * @typedef {Pick<MatrixModel, "rowLabels" | "columnLabels" | "rowNumbers" | "columnNumbers" | "rowCount" | "columnCount" | "rowAxis" | "columnAxis" |
 *   "square">} Shape
 */

/** @typedef {{width: number, height: number, inView?: number}} Box `inView`: the preferred height, at which the heatmap
 * fits into the window */
/** @typedef {{mode: "auto" | "fit" | "free", factor: number}} Zoom `factor` multiplies the automatic cell size */
/** @typedef {{x: number, y: number}} Pitch distance between cells */
/** @typedef {ReturnType<typeof computeMatrixLayout>} MatrixGeometry */

const MAX_PITCH = 56;
/** Minimum row height for a label of 11 px. */
export const READABLE_PITCH = 16;
const TIGHT_PITCH = 14; // minimum cell size chosen automatically
const ROOMY_PITCH = 20; // size to which cells shrink before the matrix scrolls
const NUMBERED_PITCH = 29; // minimum cell size for numbers with two decimals
export const MAX_ZOOM_PITCH = 96;
/** Gap between a label and its cells. */
export const GAP = 8;
/** Factor by which a highlighted (bold) label is wider. */
export const BOLD = 1.1;
const ROW_LABEL_LIMIT = 150;
export const COLUMN_LABEL_LIMIT = 120;
const DIAGONAL = Math.SQRT1_2;

/**
 * Returns the layout of a heatmap in a box.
 *
 * @param {Shape} model
 * @param {Box} box
 * @param {Zoom} zoom
 * @param {Measure} measure
 */
export function computeMatrixLayout(model, box, zoom, measure) {
  const size = 12;
  const left = measureRowGutter(model, box, size, measure);
  let right = 2;
  let pitch = choosePitch(model, box, zoom, left, 90, right);
  let columns = layOutColumnLabels(model, pitch.x, measure);
  // The height of the column labels and the cell size depend on each other, so they are computed iteratively.
  for (let round = 0; round < 2; round++) {
    right = Math.max(2, columns.overhang);
    pitch = choosePitch(model, box, zoom, left, columns.height, right);
    columns = layOutColumnLabels(model, pitch.x, measure);
  }
  right = Math.max(2, columns.overhang);
  const cellWidth = left + model.columnCount * pitch.x;
  if (zoom.mode !== "free" && cellWidth <= box.width && cellWidth + right > box.width + 1) {
    // All cells fit, but the slanted labels of the last columns would be cut off.
    columns = layOutColumnLabels(model, pitch.x, measure, false);
    right = Math.max(2, columns.overhang);
    pitch = choosePitch(model, box, zoom, left, columns.height, right);
  }
  return {
    left,
    top: columns.height,
    pitchX: pitch.x,
    pitchY: pitch.y,
    automatic: pitch.automatic,
    whole: pitch.whole,
    columns,
    rows: {
      size: pitch.y >= READABLE_PITCH ? size : 11,
      labelStep:
        model.rowNumbers && pitch.y < TIGHT_PITCH
          ? computeRulerStep(pitch.y, 14)
          : computeAxisStep(model.rowLabels, pitch.y, 14),
    },
    contentWidth: left + model.columnCount * pitch.x + right,
    contentHeight: columns.height + model.rowCount * pitch.y + 2,
  };
}

/**
 * Returns the layout of the whole matrix at a given cell size.
 *
 * @param {Shape} model
 * @param {Measure} measure
 * @param {MatrixGeometry} geometry
 * @param {number} pitch
 */
export function layOutAtPitch(model, measure, geometry, pitch) {
  const box = { width: geometry.left + model.columnCount * geometry.automatic.x, height: 600 };
  const free = computeMatrixLayout(model, box, { mode: "free", factor: 1 }, measure);
  return computeMatrixLayout(model, box, { mode: "free", factor: pitch / free.automatic.x }, measure);
}

/**
 * @param {Shape} model
 * @param {Box} box
 * @param {number} size
 * @param {Measure} measure
 */
function measureRowGutter(model, box, size, measure) {
  const limit = Math.min(ROW_LABEL_LIMIT, Math.max(64, box.width * 0.3));
  const numbers = model.rowNumbers ? measure(`${Math.max(...model.rowNumbers.map(Number))}  `, size) : 0;
  const labels = numbers + measureWidest(model.rowLabels, size, measure, limit);
  const axes = Math.max(measure(formatRowAxis(model), 11, 600), measure(formatColumnAxis(model), 11, 600));
  return Math.ceil(Math.min(Math.max(labels * BOLD, axes), limit)) + GAP + 6;
}

/** @param {Pick<MatrixModel, "rowAxis">} model */
export function formatRowAxis(model) {
  return `${model.rowAxis} ↓`;
}

/** @param {Pick<MatrixModel, "columnAxis">} model */
export function formatColumnAxis(model) {
  return `${model.columnAxis} →`;
}

/**
 * @param {Shape} model
 * @param {Box} box
 * @param {Zoom} zoom
 * @param {number} left
 * @param {number} top
 * @param {number} right
 */
function choosePitch(model, box, zoom, left, top, right) {
  const room = { x: box.width - left - right - 2, y: box.height - top - 4 };
  const fit = { x: room.x / model.columnCount, y: room.y / model.rowCount };
  const inView = Math.min(((box.inView ?? box.height) - top - 4) / model.rowCount, fit.y);
  const automatic = model.square ? chooseSquarePitch(fit, inView) : chooseOblongPitch(fit);
  const whole = model.square
    ? makeSquare(Math.min(fit.x, fit.y, MAX_PITCH))
    : { x: Math.min(fit.x, MAX_PITCH), y: Math.min(fit.y, automatic.y) };
  let pitch = automatic;
  if (zoom.mode === "fit") pitch = whole;
  if (zoom.mode === "free") pitch = scalePitch(automatic, zoom.factor, model.square);
  return { x: roundPitch(pitch.x), y: roundPitch(pitch.y), automatic, whole };
}

/** @param {number} pitch @returns {Pitch} */
function makeSquare(pitch) {
  return { x: pitch, y: pitch };
}

/** @param {Pitch} fit @param {number} inView */
function chooseSquarePitch(fit, inView) {
  // Prefer slightly smaller cells to scrolling for the last two columns.
  const readable = fit.x >= TIGHT_PITCH ? Math.floor(fit.x) : READABLE_PITCH;
  const wide = Math.min(readable, MAX_PITCH);
  // Prefer smaller cells without scrolling to large cells, unless the numbers would no longer fit.
  const numbered = Math.min(Math.floor(fit.y), NUMBERED_PITCH);
  const minPitch = Math.max(Math.floor(inView), numbered, ROOMY_PITCH);
  return makeSquare(Math.min(wide, minPitch));
}

/** @param {Pitch} fit */
function chooseOblongPitch(fit) {
  return {
    x: Math.min(Math.max(fit.x, 1), MAX_PITCH),
    y: Math.min(Math.max(Math.floor(fit.y), READABLE_PITCH + 2), 30),
  };
}

/** @param {Pitch} automatic @param {number} factor @param {boolean} square */
function scalePitch(automatic, factor, square) {
  const x = Math.min(automatic.x * factor, MAX_ZOOM_PITCH);
  return square ? makeSquare(x) : { x, y: Math.min(Math.max(automatic.y * factor, 8), 44) };
}

/** Rounds large cells to whole pixels, because uneven cells are noticeable. @param {number} pitch */
function roundPitch(pitch) {
  return pitch >= 6 ? Math.floor(pitch) : pitch;
}

/**
 * Returns the zoom factor after a step. The cell size changes by at least one pixel, because sizes are rounded.
 *
 * @param {MatrixGeometry} geometry
 * @param {number} ratio
 */
export function stepZoom(geometry, ratio) {
  const targetPitch = geometry.pitchX * ratio;
  const pitch = targetPitch < 6 ? targetPitch : ratio > 1 ? Math.ceil(targetPitch) : Math.floor(targetPitch);
  return pitch / geometry.automatic.x;
}

/**
 * Returns the angle, the thinning and the height of the column labels for a cell size.
 *
 * @param {Shape} model
 * @param {number} pitch
 * @param {Measure} measure
 * @param {boolean} canSlant
 */
function layOutColumnLabels(model, pitch, measure, canSlant = true) {
  const { columnLabels: labels } = model;
  if (model.columnNumbers) return layOutColumnRuler(model.columnNumbers, pitch, measure);
  const numeric = computeIncrement(labels) > 0;
  const size = pitch >= READABLE_PITCH || numeric ? 12 : 11;
  const longest = measureWidest(labels, size, measure, COLUMN_LABEL_LIMIT);
  const limit = longest + 1;
  const axes = 38; // height of the two axis titles in the corner
  if (numeric || longest <= pitch - 6) {
    const labelStep = numeric ? computeAxisStep(labels, pitch, longest + 10) : 1;
    return { angle: 0, size, labelStep, limit, height: axes, overhang: longest / 2 - pitch / 2 };
  }
  const labelStep = computeAxisStep(labels, pitch, 13);
  const visibleLabels = labels.filter((label, i) => isLabelVisible(label, i, labelStep));
  const tallest = measureWidest(visibleLabels, size, measure, COLUMN_LABEL_LIMIT);
  if (canSlant && pitch * labelStep >= ROOMY_PITCH && labelStep === 1) {
    const height = Math.max(Math.ceil((longest * BOLD + 6) * DIAGONAL) + 16, axes);
    return {
      angle: 45,
      size,
      labelStep,
      limit,
      height,
      overhang: measureOverhang(model, pitch, size, measure),
    };
  }
  const height = Math.max(Math.ceil(tallest * BOLD) + GAP + 6, axes);
  return { angle: 90, size, labelStep, limit, height, overhang: 2 };
}

/**
 * Returns the layout of a ruler of residues: letters below the number of each tenth residue, or thinned numbers.
 *
 * @param {(number | null)[]} numbers
 * @param {number} pitch
 * @param {Measure} measure
 */
function layOutColumnRuler(numbers, pitch, measure) {
  const size = 12;
  const widest = measure(String(Math.max(...numbers.map(Number))), size);
  const labelStep = pitch < TIGHT_PITCH ? computeRulerStep(pitch, widest + 10) : 1;
  const limit = widest + measure("W", size, 600) + 1;
  return { angle: 0, size, labelStep, limit, height: 42, overhang: (widest - pitch) / 2 };
}

/**
 * Returns the difference of adjacent labels if they are numbers at equal distances, as for dimensions; otherwise 0.
 * Such labels are never slanted.
 *
 * @param {string[]} labels
 */
function computeIncrement(labels) {
  const [first, second] = labels.slice(0, 2).map(Number);
  const isSequence = labels.every(
    (label, i) => /^\d+$/.test(label) && Number(label) === first + i * (second - first),
  );
  return labels.length > 1 && isSequence && second > first ? second - first : 0;
}

/**
 * Returns the step of `isLabelVisible` with which the visible labels of an axis have enough space.
 *
 * @param {string[]} labels
 * @param {number} pitch
 * @param {number} room
 */
function computeAxisStep(labels, pitch, room) {
  const step = computeLabelStep(labels.length, pitch, room);
  return step > 1 ? step * (computeIncrement(labels) || 1) : 1;
}

/**
 * Returns the width by which slanted labels extend beyond the last column.
 *
 * @param {Shape} model
 * @param {number} pitch
 * @param {number} size
 * @param {Measure} measure
 */
function measureOverhang(model, pitch, size, measure) {
  let maximum = 0;
  for (let back = 0; back < Math.min(model.columnCount, 8); back++) {
    const label = model.columnLabels[model.columnCount - 1 - back];
    const reach = (Math.min(measure(label, size), COLUMN_LABEL_LIMIT) + 12) * DIAGONAL;
    maximum = Math.max(maximum, reach - pitch * (back + 0.5));
  }
  return Math.ceil(maximum);
}

/**
 * Returns the rows and columns in the visible area.
 *
 * @param {Shape} model
 * @param {MatrixGeometry} geometry
 * @param {Area} viewport
 */
export function getVisibleRange(model, geometry, viewport) {
  /**
   * Returns the first visible index and the index after the last. There is none if the viewport is smaller
   * than the labels, as before the container has a width.
   *
   * @param {number} scroll @param {number} size @param {number} pitch @param {number} count
   */
  const getRange = (scroll, size, pitch, count) => {
    const start = Math.max(Math.floor(scroll / pitch), 0);
    return [start, Math.max(Math.min(Math.ceil((scroll + size) / pitch), count), start)];
  };
  const { left, top, pitchX, pitchY } = geometry;
  const [rowStart, rowEnd] = getRange(viewport.y, viewport.height - top, pitchY, model.rowCount);
  const [columnStart, columnEnd] = getRange(viewport.x, viewport.width - left, pitchX, model.columnCount);
  return { rowStart, rowEnd, columnStart, columnEnd };
}

/** @typedef {ReturnType<typeof getVisibleRange>} Range */

/**
 * Returns the cell, or the row or column label, at a point of the viewport.
 *
 * @param {Shape} model
 * @param {MatrixGeometry} geometry
 * @param {Area} viewport
 * @param {number} x
 * @param {number} y
 * @returns {import("./model.js").Spot | null}
 */
export function findSpot(model, geometry, viewport, x, y) {
  const column = Math.floor((x - geometry.left + viewport.x) / geometry.pitchX);
  const row = Math.floor((y - geometry.top + viewport.y) / geometry.pitchY);
  const inColumn = x >= geometry.left && column >= 0 && column < model.columnCount;
  const inRow = y >= geometry.top && row >= 0 && row < model.rowCount;
  if (inRow && inColumn) return { row, column };
  if (inRow && x < geometry.left) return { row, column: null };
  if (x < geometry.left || y >= geometry.top) return null;
  // A slanted label extends to the right by as much as it rises above the cells.
  const slant = geometry.columns.angle === 45 ? geometry.top - y : 0;
  const labelColumn = Math.floor((x - slant - geometry.left + viewport.x) / geometry.pitchX);
  return labelColumn >= 0 && labelColumn < model.columnCount ? { row: null, column: labelColumn } : null;
}
