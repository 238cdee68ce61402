// Paints the heatmap, for the screen and for files. All lengths are CSS pixels.

import { packColor, parseColor } from "../core/color.js";
import { CENTER, NO_VALUE } from "../core/scale.js";
import { formatNumber, isTick, truncateText } from "../core/text.js";
import { BOLD, COLUMN_LABEL_LIMIT, formatColumnAxis, formatRowAxis, GAP, getVisibleRange } from "./layout.js";
import { getAxisText, getName, getValue, isCell } from "./model.js";

/**
 * @typedef {import("../core/pen.js").Pen} Pen
 * @typedef {import("../core/pen.js").Area} Area
 * @typedef {import("./layout.js").Range} Range
 * @typedef {import("./model.js").Cell} Cell
 * @typedef {import("./model.js").Spot} Spot
 */

/**
 * @typedef {object} MatrixPicture
 * @property {import("./model.js").MatrixModel} model
 * @property {import("../core/theme.js").Theme} theme
 * @property {import("../core/scale.js").Colors} colors
 * @property {import("../core/text.js").Measure} measure
 * @property {import("./layout.js").MatrixGeometry} geometry
 * @property {number} ratio
 * @property {Area} viewport the visible area of the content
 */

const MARKED_PITCH = 5; // minimum cell size for outlines, which would hide smaller cells
const GAPPED_PITCH = 12; // minimum cell size for gaps; smaller cells are painted as an image

/**
 * Paints cells, labels and axis titles, which do not depend on the pointer.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 */
export function paintMatrix(pen, picture) {
  const { geometry, viewport, theme } = picture;
  pen.rectangle(0, 0, viewport.width, viewport.height, { fill: theme.background });
  const range = getVisibleRange(picture.model, geometry, viewport);
  pen.clip(getCellArea(picture), () => {
    // Draw the cells of an SVG as shapes at any size, because an SVG may be enlarged.
    if (getGap(picture) || pen.resolution === Number.POSITIVE_INFINITY) paintBlocks(pen, picture, range);
    else paintImage(pen, picture, range);
    paintFrame(pen, picture);
    paintMarked(pen, picture, range);
  });
  pen.clip({ x: 0, y: geometry.top - 1, width: geometry.left, height: viewport.height }, () =>
    paintRowLabels(pen, picture, range),
  );
  paintColumnLabels(pen, picture, range);
  paintAxisNames(pen, picture);
}

/** @param {MatrixPicture} picture @returns {Area} */
function getCellArea({ geometry: { left, top }, viewport }) {
  return { x: left - 1, y: top - 1, width: viewport.width - left + 1, height: viewport.height };
}

/** Rounds a length to device pixels, for sharp edges. @param {number} ratio @param {number} length */
function snap(ratio, length) {
  return Math.round(length * ratio) / ratio;
}

/** @param {MatrixPicture} picture @param {number} column */
function getColumnEdge({ geometry, viewport, ratio }, column) {
  return snap(ratio, geometry.left + column * geometry.pitchX - viewport.x);
}

/** @param {MatrixPicture} picture @param {number} row */
function getRowEdge({ geometry, viewport, ratio }, row) {
  return snap(ratio, geometry.top + row * geometry.pitchY - viewport.y);
}

/** @param {MatrixPicture} picture */
function getGap({ geometry }) {
  return Math.min(geometry.pitchX, geometry.pitchY) >= GAPPED_PITCH ? 1 : 0;
}

/** @param {Pen} pen @param {MatrixPicture} picture */
function paintFrame(pen, picture) {
  const { model, theme } = picture;
  const [x, y] = [getColumnEdge(picture, 0), getRowEdge(picture, 0)];
  const gap = getGap(picture);
  const width = getColumnEdge(picture, model.columnCount) - x - gap + 1;
  const height = getRowEdge(picture, model.rowCount) - y - gap + 1;
  pen.rectangle(x - 0.5, y - 0.5, width, height, { stroke: theme.line });
}

/**
 * Paints outlines of the marked cells, unless cells are too small for them.
 *
 * @param {Pen} pen @param {MatrixPicture} picture @param {Range} range
 */
function paintMarked(pen, picture, range) {
  const { model, geometry, theme } = picture;
  if (Math.min(geometry.pitchX, geometry.pitchY) < MARKED_PITCH) return;
  for (const [row, column] of model.marked) {
    const isVisible =
      row >= range.rowStart && row < range.rowEnd && column >= range.columnStart && column < range.columnEnd;
    if (isVisible) paintOutline(pen, picture, { row, column }, theme.ink, 2);
  }
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintBlocks(pen, picture, range) {
  const { model, theme, colors } = picture;
  const gap = getGap(picture);
  const size = chooseNumberSize(picture);
  pen.paintSeamless(() => {
    for (let row = range.rowStart; row < range.rowEnd; row++) {
      const y = getRowEdge(picture, row);
      const height = getRowEdge(picture, row + 1) - y - gap;
      for (let column = range.columnStart, end = 0; column < range.columnEnd; column = end) {
        end = gap ? column + 1 : findRunEnd(model, row, column, range.columnEnd);
        const x = getColumnEdge(picture, column);
        const width = getColumnEdge(picture, end) - x - gap;
        const value = getValue(model, row, column);
        const entry = model.colorIndex(value);
        if (entry === NO_VALUE) {
          pen.hatch({ x, y, width, height }, theme.missing);
          continue;
        }
        pen.rectangle(x, y, width, height, { fill: colors.css[entry] });
        if (!size) continue;
        const lettering = {
          size,
          fill: colors.inks[entry],
          anchor: /** @type {const} */ ("middle"),
          isCentered: true,
        };
        pen.text(formatCell(value, model), x + width / 2, y + height / 2 + 0.5, lettering);
      }
    }
  });
}

/**
 * Returns the end of a run of adjacent cells with the same color.
 *
 * @param {import("./model.js").MatrixModel} model @param {number} row @param {number} column @param {number} limit
 */
function findRunEnd(model, row, column, limit) {
  let end = column + 1;
  while (end < limit && Object.is(getValue(model, row, end), getValue(model, row, column))) end++;
  return end;
}

/**
 * Formats a number for a cell: at most two decimals, none for counts.
 *
 * @param {number} value @param {import("./model.js").MatrixModel} model
 */
function formatCell(value, model) {
  return formatNumber(value, Math.min(2, model.decimals));
}

/** Returns the font size of the numbers in cells; 0 if they do not fit. @param {MatrixPicture} picture */
function chooseNumberSize({ model, geometry, measure }) {
  const size = geometry.pitchX >= 44 ? 12 : 11;
  const longest = Math.max(...[model.min, model.max].map((value) => measure(formatCell(value, model), size)));
  return longest > geometry.pitchX - 7 || geometry.pitchY < size + 5 ? 0 : size;
}

/**
 * Paints small cells as an enlarged image; if cells are smaller than pixels, each pixel shows its strongest cell.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {Range} range
 */
function paintImage(pen, picture, range) {
  const { geometry, ratio } = picture;
  const columns = createSampling(range.columnStart, range.columnEnd, geometry.pitchX * ratio);
  const rows = createSampling(range.rowStart, range.rowEnd, geometry.pitchY * ratio);
  if (!columns.count || !rows.count) return;
  const [x, y] = [getColumnEdge(picture, range.columnStart), getRowEdge(picture, range.rowStart)];
  const width = getColumnEdge(picture, range.columnEnd) - x;
  const height = getRowEdge(picture, range.rowEnd) - y;
  const rgba = sampleColors(picture, rows, columns);
  pen.image({ width: columns.count, height: rows.count, rgba }, { x, y, width, height });
}

/** @typedef {{count: number, from: (pixel: number) => number}} Sampling */

/**
 * Returns the cells that each pixel along an axis shows.
 *
 * @param {number} start @param {number} end @param {number} devicePitch
 * @returns {Sampling}
 */
function createSampling(start, end, devicePitch) {
  const cells = end - start;
  const count = devicePitch >= 1 ? cells : Math.max(Math.round(cells * devicePitch), Math.min(cells, 1));
  return { count, from: (pixel) => start + Math.floor((pixel * cells) / count) };
}

/** @param {MatrixPicture} picture @param {Sampling} rows @param {Sampling} columns */
function sampleColors({ model, theme, colors }, rows, columns) {
  const missing = theme.missing.map((color) => packColor(parseColor(color)));
  const starts = Array.from({ length: columns.count + 1 }, (_, pixel) => columns.from(pixel));
  const rgba = new Uint32Array(rows.count * columns.count);
  let pixel = 0;
  for (let y = 0; y < rows.count; y++) {
    const [top, bottom] = [rows.from(y), rows.from(y + 1)];
    for (let x = 0; x < columns.count; x++) {
      const entry = findStrongest(model, top, bottom, starts[x], starts[x + 1]);
      rgba[pixel++] = entry === NO_VALUE ? missing[(x + y) & 1] : colors.rgba[entry];
    }
  }
  return rgba;
}

/**
 * Returns the color index of the block's strongest cell, so that single strong cells stay visible.
 *
 * @param {import("./model.js").MatrixModel} model
 * @param {number} top @param {number} bottom @param {number} left @param {number} right
 */
function findStrongest(model, top, bottom, left, right) {
  const zeroEntry = model.scale.kind === "diverging" ? CENTER : 0;
  let best = NO_VALUE;
  let distance = -1;
  for (let row = top; row < bottom; row++) {
    const offset = row * model.columnCount;
    for (let column = left; column < right; column++) {
      const entry = model.colorIndex(model.values[offset + column]);
      if (entry !== NO_VALUE && Math.abs(entry - zeroEntry) > distance) {
        best = entry;
        distance = Math.abs(entry - zeroEntry);
      }
    }
  }
  return best;
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintRowLabels(pen, picture, range) {
  const { model, geometry, theme, measure } = picture;
  const { size, labelStep } = geometry.rows;
  for (let row = range.rowStart; row < range.rowEnd; row++) {
    const label = getAxisText(model, "row", row, labelStep);
    if (!label) continue;
    const text = truncateText(label, geometry.left - GAP - 2, size, measure);
    const lettering = { size, fill: theme.ink, anchor: /** @type {const} */ ("end"), isCentered: true };
    const y = getRowLabelMiddle(picture, row) + 0.5;
    pen.text(text, geometry.left - GAP, y, { ...lettering, width: measure(text, size) });
    const number = model.rowNumbers?.[row] ?? null;
    if (!isTick(number, 10)) continue;
    if (labelStep > 1) paintTick(pen, theme, [geometry.left - 6, y], [geometry.left - 2, y]);
    else pen.text(String(number), geometry.left - GAP - 16, y, { ...lettering, fill: theme.muted });
  }
}

/**
 * Returns the vertical center of a row label. The first and last labels are moved inward if their rows are too small.
 *
 * @param {MatrixPicture} picture @param {number} row
 */
function getRowLabelMiddle(picture, row) {
  const { pitchY, top } = picture.geometry;
  const middle = (getRowEdge(picture, row) + getRowEdge(picture, row + 1) - getGap(picture)) / 2;
  if (pitchY >= GAPPED_PITCH) return middle;
  return Math.min(Math.max(middle, top + 6), getRowEdge(picture, picture.model.rowCount) - 4);
}

/** @param {MatrixPicture} picture @param {number} column */
function getColumnLabelMiddle(picture, column) {
  const { pitchX, left, columns } = picture.geometry;
  const middle = getColumnMiddle(picture, column);
  return pitchX < GAPPED_PITCH && columns.angle ? Math.max(middle, left + 6) : middle;
}

/** @param {MatrixPicture} picture @param {number} column */
function getColumnMiddle(picture, column) {
  return (getColumnEdge(picture, column) + getColumnEdge(picture, column + 1) - getGap(picture)) / 2;
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintColumnLabels(pen, picture, range) {
  const { model, geometry, theme } = picture;
  const { labelStep, size, limit, angle } = geometry.columns;
  // Slanted labels of columns to the left of the visible area can extend into this area.
  const before = angle === 45 ? Math.ceil(COLUMN_LABEL_LIMIT / geometry.pitchX) : 1;
  pen.clip(getColumnLabelArea(picture), () => {
    for (let column = Math.max(range.columnStart - before, 0); column < range.columnEnd; column++) {
      const label = getAxisText(model, "column", column, labelStep);
      const number = model.columnNumbers?.[column] ?? null;
      // The name of a special token is wider than a column of residues, so it appears only in the highlighted label.
      if (!label || (model.columnNumbers && number === null)) continue;
      const text = truncateText(label, limit, size, picture.measure);
      transformToColumnLabel(pen, picture, column, () => {
        paintColumnLabel(pen, picture, text, theme.ink, 400);
        if (!isTick(number, 10)) return;
        if (labelStep > 1) paintTick(pen, theme, [0, 2], [0, 6]);
        else pen.text(String(number), 0, -15, { size, fill: theme.muted, anchor: "middle" });
      });
    }
  });
}

/**
 * Paints the tick of a numbered residue.
 *
 * @param {Pen} pen @param {import("../core/theme.js").Theme} theme @param {[number, number]} from
 * @param {[number, number]} to
 */
function paintTick(pen, theme, from, to) {
  pen.path(
    (path) => {
      path.moveTo(...from);
      path.lineTo(...to);
    },
    { stroke: theme.muted },
  );
}

/**
 * Returns the area of the column labels, which includes a part of the corner for the first column's centered number.
 *
 * @param {MatrixPicture} picture @returns {Area}
 */
function getColumnLabelArea({ geometry: { left, top, columns }, viewport }) {
  const reach = columns.angle === 0 ? Math.min(12, left) : 0;
  return { x: left - 1 - reach, y: 0, width: viewport.width + reach, height: top };
}

/**
 * Calls `paint` with the origin at the start of a column label and the x axis along its text.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {number} column
 * @param {() => void} paint
 */
function transformToColumnLabel(pen, picture, column, paint) {
  const { angle } = picture.geometry.columns;
  // The lowest point of a slanted label is below the start of its text.
  const above = angle === 0 ? 8 : angle === 45 ? 11 : 7;
  pen.transform(getColumnLabelMiddle(picture, column), picture.geometry.top - above, -angle, paint);
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {string} text @param {string} fill @param {number} weight */
function paintColumnLabel(pen, { geometry, measure }, text, fill, weight) {
  const { size, angle } = geometry.columns;
  const anchor = angle ? "start" : "middle";
  pen.text(text, 0, 0, {
    size,
    fill,
    weight,
    anchor,
    isCentered: angle > 0,
    width: measure(text, size, weight),
  });
}

/** @param {Pen} pen @param {MatrixPicture} picture */
function paintAxisNames(pen, { model, geometry, theme, measure }) {
  const x = geometry.left - GAP;
  const lettering = { size: 11, weight: 600, fill: theme.muted, anchor: /** @type {const} */ ("end") };
  [formatRowAxis(model), formatColumnAxis(model)].forEach((text, line) => {
    const name = truncateText(text, x, 11, measure, 600);
    const width = measure(name, 11, 600);
    pen.text(name, x, geometry.top - GAP - 15 * line, { ...lettering, width });
  });
}

/**
 * Paints the crosshair of the active cell, and the outline of the pinned cell.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {{active: Spot | null, pinned: Cell | null}} cells
 */
export function paintMarks(pen, picture, { active, pinned }) {
  const { theme } = picture;
  pen.clip(getCellArea(picture), () => {
    if (active) paintBands(pen, picture, active);
    if (pinned) paintOutline(pen, picture, pinned, theme.accent, 3);
    if (isCell(active)) paintOutline(pen, picture, active, theme.ink, 2);
  });
  if (pinned) paintTags(pen, picture, pinned, theme.accent);
  if (active) paintTags(pen, picture, active, theme.ink);
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Spot} spot */
function paintBands(pen, picture, { row, column }) {
  const { model } = picture;
  const [left, right] = [getColumnEdge(picture, 0), getColumnEdge(picture, model.columnCount)];
  const [top, bottom] = [getRowEdge(picture, 0), getRowEdge(picture, model.rowCount)];
  // A band that is thinner than its outline is drawn as a single line, so that adjacent cells remain visible.
  /** @param {number} start @param {number} end */
  const thickness = (start, end) => (end - start < 4 ? 0 : end - start);
  if (row !== null) {
    const y = getRowEdge(picture, row);
    paintBand(pen, picture, left, y, right - left, thickness(y, getRowEdge(picture, row + 1)));
  }
  if (column !== null) {
    const x = getColumnEdge(picture, column);
    paintBand(pen, picture, x, top, thickness(x, getColumnEdge(picture, column + 1)), bottom - top);
  }
}

/** @param {Pen} pen @param {MatrixPicture} picture
 * @param {number} x @param {number} y @param {number} width @param {number} height */
function paintBand(pen, { theme }, x, y, width, height) {
  const look = { stroke: theme.ink, alpha: 0.45 };
  if (width && height) pen.rectangle(x - 0.5, y - 0.5, width, height, look);
  else {
    pen.path((path) => {
      path.moveTo(x - 0.5, y - 0.5);
      path.lineTo(x - 0.5 + width, y - 0.5 + height);
    }, look);
  }
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Cell} cell @param {string} stroke @param {number} lineWidth */
function paintOutline(pen, picture, { row, column }, stroke, lineWidth) {
  const [x, y] = [getColumnEdge(picture, column), getRowEdge(picture, row)];
  const gap = getGap(picture);
  // The outline of a very small cell is enlarged, so that it is visible.
  const width = Math.max(getColumnEdge(picture, column + 1) - x - gap, 3) + 1;
  const height = Math.max(getRowEdge(picture, row + 1) - y - gap, 3) + 1;
  pen.rectangle(x - 0.5, y - 0.5, width, height, {
    stroke: picture.theme.background,
    lineWidth: lineWidth + 2,
  });
  pen.rectangle(x - 0.5, y - 0.5, width, height, { stroke, lineWidth });
}

/**
 * Paints the highlighted labels of a cell.
 *
 * @param {Pen} pen @param {MatrixPicture} picture @param {Spot} spot @param {string} fill
 */
function paintTags(pen, picture, { row, column }, fill) {
  const { geometry, viewport } = picture;
  if (row !== null) {
    const area = { x: 0, y: geometry.top - 8, width: geometry.left, height: viewport.height };
    pen.clip(area, () => paintRowTag(pen, picture, row, fill));
  }
  if (column !== null) {
    const area = { x: geometry.left - 12, y: 0, width: viewport.width, height: geometry.top };
    pen.clip(area, () => paintColumnTag(pen, picture, column, fill));
  }
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {number} row @param {string} fill */
function paintRowTag(pen, picture, row, fill) {
  const { model, geometry, theme, measure } = picture;
  const { size, labelStep } = geometry.rows;
  const right = geometry.left - GAP;
  const text = truncateText(getName(model, "row", row), right - 2, size, measure, 600);
  const width = measure(text, size, 600);
  const y = getRowLabelMiddle(picture, row);
  if (y < geometry.top - 1) return;
  clearNeighbors(pen, picture, "row", row, 17 / geometry.pitchY, labelStep, (neighbor) => {
    return { x: 0, y: getRowLabelMiddle(picture, neighbor) - 9, width: right + 2, height: 18 };
  });
  pen.rectangle(right - width - 4, y - 8, width + 8, 16, { fill, radius: 4 });
  pen.text(text, right, y + 0.5, {
    size,
    weight: 600,
    fill: theme.background,
    anchor: "end",
    isCentered: true,
  });
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {number} column @param {string} fill */
function paintColumnTag(pen, picture, column, fill) {
  const { model, geometry, theme, measure } = picture;
  const { size, limit, angle, labelStep } = geometry.columns;
  const text = truncateText(getName(model, "column", column), limit * BOLD, size, measure, 600);
  const width = measure(text, size, 600);
  const reach = angle === 0 ? width / 2 + limit / 2 + 8 : 17;
  const room = angle === 0 ? limit + 4 : 18;
  clearNeighbors(pen, picture, "column", column, reach / geometry.pitchX, labelStep, (neighbor) => {
    return {
      x: getColumnLabelMiddle(picture, neighbor) - room / 2,
      y: 0,
      width: room,
      height: geometry.top - 2,
    };
  });
  if (getColumnMiddle(picture, column) < geometry.left - 1) return;
  transformToColumnLabel(pen, picture, column, () => {
    pen.rectangle(angle ? -4 : -width / 2 - 4, angle ? -8 : -12, width + 8, 16, { fill, radius: 4 });
    paintColumnLabel(pen, picture, text, theme.background, 600);
  });
}

/**
 * Hides labels that a highlighted label would partly cover.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {"row" | "column"} axis
 * @param {number} index
 * @param {number} span
 * @param {number} labelStep
 * @param {(near: number) => Area} areaOf
 */
function clearNeighbors(pen, { model, theme }, axis, index, span, labelStep, areaOf) {
  if (labelStep === 1) return;
  const count = axis === "row" ? model.rowCount : model.columnCount;
  const last = Math.min(index + Math.ceil(span), count - 1);
  for (let neighbor = Math.max(index - Math.ceil(span), 0); neighbor <= last; neighbor++) {
    if (Math.abs(neighbor - index) > span || !getAxisText(model, axis, neighbor, labelStep)) continue;
    const { x, y, width, height } = areaOf(neighbor);
    pen.rectangle(x, y, width, height, { fill: theme.background });
  }
}
