// Painting, for the screen and for files. All lengths are CSS pixels.

import { channels, packedColor } from "../core/color.js";
import { CENTRE, NO_VALUE } from "../core/scale.js";
import { ellipsised, formatted, isShown } from "../core/text.js";
import { BOLD, COLUMN_LABEL_LIMIT, columnAxisText, GAP, rowAxisText, visibleRange } from "./layout.js";
import { isCell, valueAt } from "./model.js";

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
 * @property {Area} view the visible area of the content
 */

const GAPPED_PITCH = 12; // cells of this size are painted one by one with gaps; smaller ones as an image

/**
 * Paints everything that does not depend on the pointer.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 */
export function paintMatrix(pen, picture) {
  const { geometry, view, theme } = picture;
  pen.rectangle(0, 0, view.width, view.height, { fill: theme.background });
  const range = visibleRange(picture.model, geometry, view);
  pen.clipped(cellArea(picture), () => {
    // A file may be enlarged, so its cells are always shapes.
    if (gapOf(picture) || pen.resolution === Number.POSITIVE_INFINITY) paintBlocks(pen, picture, range);
    else paintImage(pen, picture, range);
    paintFrame(pen, picture);
  });
  pen.clipped({ x: 0, y: geometry.top - 1, width: geometry.left, height: view.height }, () =>
    paintRowLabels(pen, picture, range),
  );
  paintColumnLabels(pen, picture, range);
  paintAxisNames(pen, picture);
}

/** @param {MatrixPicture} picture @returns {Area} */
function cellArea({ geometry: { left, top }, view }) {
  return { x: left - 1, y: top - 1, width: view.width - left + 1, height: view.height };
}

/** Rounds a length to device pixels, for sharp edges. @param {number} ratio @param {number} length */
function snapped(ratio, length) {
  return Math.round(length * ratio) / ratio;
}

/** @param {MatrixPicture} picture @param {number} column */
function columnEdge({ geometry, view, ratio }, column) {
  return snapped(ratio, geometry.left + column * geometry.pitchX - view.x);
}

/** @param {MatrixPicture} picture @param {number} row */
function rowEdge({ geometry, view, ratio }, row) {
  return snapped(ratio, geometry.top + row * geometry.pitchY - view.y);
}

/** @param {MatrixPicture} picture */
function gapOf({ geometry }) {
  return Math.min(geometry.pitchX, geometry.pitchY) >= GAPPED_PITCH ? 1 : 0;
}

/** @param {Pen} pen @param {MatrixPicture} picture */
function paintFrame(pen, picture) {
  const { model, theme } = picture;
  const [x, y] = [columnEdge(picture, 0), rowEdge(picture, 0)];
  const gap = gapOf(picture);
  const width = columnEdge(picture, model.columnCount) - x - gap + 1;
  const height = rowEdge(picture, model.rowCount) - y - gap + 1;
  pen.rectangle(x - 0.5, y - 0.5, width, height, { stroke: theme.line });
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintBlocks(pen, picture, range) {
  const { model, theme, colors } = picture;
  const gap = gapOf(picture);
  const size = numberSize(picture);
  pen.seamless(() => {
    for (let row = range.rowStart; row < range.rowEnd; row++) {
      const y = rowEdge(picture, row);
      const height = rowEdge(picture, row + 1) - y - gap;
      for (let column = range.columnStart, end = 0; column < range.columnEnd; column = end) {
        end = gap ? column + 1 : endOfRun(model, row, column, range.columnEnd);
        const x = columnEdge(picture, column);
        const width = columnEdge(picture, end) - x - gap;
        const value = valueAt(model, row, column);
        const entry = model.colorIndex(value);
        if (entry === NO_VALUE) {
          pen.hatched({ x, y, width, height }, theme.missing);
          continue;
        }
        pen.rectangle(x, y, width, height, { fill: colors.css[entry] });
        if (!size) continue;
        const lettering = {
          size,
          fill: colors.inks[entry],
          anchor: /** @type {const} */ ("middle"),
          middle: true,
        };
        pen.text(inCell(value, model), x + width / 2, y + height / 2 + 0.5, lettering);
      }
    }
  });
}

/**
 * The end of a run of adjacent cells of the same color.
 *
 * @param {import("./model.js").MatrixModel} model @param {number} row @param {number} column @param {number} most
 */
function endOfRun(model, row, column, most) {
  let end = column + 1;
  while (end < most && Object.is(valueAt(model, row, end), valueAt(model, row, column))) end++;
  return end;
}

/**
 * Formats a number for a cell: at most two decimals, none for counts.
 *
 * @param {number} value @param {import("./model.js").MatrixModel} model
 */
function inCell(value, model) {
  return formatted(value, Math.min(2, model.decimals));
}

/** The font size of the numbers in cells; 0 if the longest does not fit. @param {MatrixPicture} picture */
function numberSize({ model, geometry, measure }) {
  const size = geometry.pitchX >= 44 ? 12 : 11;
  const longest = Math.max(...[model.least, model.most].map((value) => measure(inCell(value, model), size)));
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
  const columns = sampling(range.columnStart, range.columnEnd, geometry.pitchX * ratio);
  const rows = sampling(range.rowStart, range.rowEnd, geometry.pitchY * ratio);
  if (!columns.count || !rows.count) return;
  const [x, y] = [columnEdge(picture, range.columnStart), rowEdge(picture, range.rowStart)];
  const width = columnEdge(picture, range.columnEnd) - x;
  const height = rowEdge(picture, range.rowEnd) - y;
  const words = sampledColors(picture, rows, columns);
  pen.image({ width: columns.count, height: rows.count, words }, { x, y, width, height });
}

/** @typedef {{count: number, from: (pixel: number) => number}} Sampling */

/**
 * The cells of each pixel along an axis.
 *
 * @param {number} start @param {number} end @param {number} devicePitch
 * @returns {Sampling}
 */
function sampling(start, end, devicePitch) {
  const cells = end - start;
  const count = devicePitch >= 1 ? cells : Math.max(Math.round(cells * devicePitch), Math.min(cells, 1));
  return { count, from: (pixel) => start + Math.floor((pixel * cells) / count) };
}

/** @param {MatrixPicture} picture @param {Sampling} rows @param {Sampling} columns */
function sampledColors({ model, theme, colors }, rows, columns) {
  const missing = theme.missing.map((color) => packedColor(channels(color)));
  const starts = Array.from({ length: columns.count + 1 }, (_, pixel) => columns.from(pixel));
  const words = new Uint32Array(rows.count * columns.count);
  let word = 0;
  for (let y = 0; y < rows.count; y++) {
    const [top, bottom] = [rows.from(y), rows.from(y + 1)];
    for (let x = 0; x < columns.count; x++) {
      const entry = strongest(model, top, bottom, starts[x], starts[x + 1]);
      words[word++] = entry === NO_VALUE ? missing[(x + y) & 1] : colors.words[entry];
    }
  }
  return words;
}

/**
 * The color index furthest from that of 0 in a block, so that single strong cells stay visible when zoomed out.
 *
 * @param {import("./model.js").MatrixModel} model
 * @param {number} top @param {number} bottom @param {number} left @param {number} right
 */
function strongest(model, top, bottom, left, right) {
  const rest = model.scale.kind === "diverging" ? CENTRE : 0;
  let best = NO_VALUE;
  let distance = -1;
  for (let row = top; row < bottom; row++) {
    const offset = row * model.columnCount;
    for (let column = left; column < right; column++) {
      const entry = model.colorIndex(model.values[offset + column]);
      if (entry !== NO_VALUE && Math.abs(entry - rest) > distance) {
        best = entry;
        distance = Math.abs(entry - rest);
      }
    }
  }
  return best;
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintRowLabels(pen, picture, range) {
  const { model, geometry, theme, measure } = picture;
  const { size, every } = geometry.rows;
  for (let row = range.rowStart; row < range.rowEnd; row++) {
    const label = model.rowLabels[row];
    if (!isShown(label, row, every)) continue;
    const shown = ellipsised(label, geometry.left - GAP - 2, size, measure);
    const lettering = { size, fill: theme.ink, anchor: /** @type {const} */ ("end"), middle: true };
    const y = rowLabelMiddle(picture, row) + 0.5;
    pen.text(shown, geometry.left - GAP, y, { ...lettering, width: measure(shown, size) });
  }
}

/** The y of a row label; the first one is moved down if its row is too small for it.
 *
 * @param {MatrixPicture} picture @param {number} row */
function rowLabelMiddle(picture, row) {
  const { pitchY, top } = picture.geometry;
  const middle = (rowEdge(picture, row) + rowEdge(picture, row + 1) - gapOf(picture)) / 2;
  return pitchY < GAPPED_PITCH ? Math.max(middle, top + 6) : middle;
}

/** @param {MatrixPicture} picture @param {number} column */
function columnLabelMiddle(picture, column) {
  const { pitchX, left, columns } = picture.geometry;
  const middle = columnMiddle(picture, column);
  return pitchX < GAPPED_PITCH && columns.angle ? Math.max(middle, left + 6) : middle;
}

/** @param {MatrixPicture} picture @param {number} column */
function columnMiddle(picture, column) {
  return (columnEdge(picture, column) + columnEdge(picture, column + 1) - gapOf(picture)) / 2;
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {Range} range */
function paintColumnLabels(pen, picture, range) {
  const { model, geometry, theme } = picture;
  const { every, size, limit, angle } = geometry.columns;
  // Slanted labels of columns left of the visible area can reach into it.
  const before = angle === 45 ? Math.ceil(COLUMN_LABEL_LIMIT / geometry.pitchX) : 1;
  pen.clipped(columnLabelArea(picture), () => {
    for (let column = Math.max(range.columnStart - before, 0); column < range.columnEnd; column++) {
      const label = model.columnLabels[column];
      if (!isShown(label, column, every)) continue;
      const shown = ellipsised(label, limit, size, picture.measure);
      atColumnLabel(pen, picture, column, () => paintColumnLabel(pen, picture, shown, theme.ink, 400));
    }
  });
}

/** The area of the column labels; a centered number of the first column can reach into the corner.
 *
 * @param {MatrixPicture} picture
 * @returns {Area} */
function columnLabelArea({ geometry: { left, top, columns }, view }) {
  const reach = columns.angle === 0 ? Math.min(12, left) : 0;
  return { x: left - 1 - reach, y: 0, width: view.width + reach, height: top };
}

/**
 * Calls `paint` with the origin at the start of a column label and the x axis along its text.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {number} column
 * @param {() => void} paint
 */
function atColumnLabel(pen, picture, column, paint) {
  const { angle } = picture.geometry.columns;
  // The lowest point of a slanted tag is below its start.
  const above = angle === 0 ? 8 : angle === 45 ? 11 : 7;
  pen.moved(columnLabelMiddle(picture, column), picture.geometry.top - above, -angle, paint);
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {string} shown @param {string} fill @param {number} weight */
function paintColumnLabel(pen, { geometry, measure }, shown, fill, weight) {
  const { size, angle } = geometry.columns;
  const anchor = angle ? "start" : "middle";
  pen.text(shown, 0, 0, {
    size,
    fill,
    weight,
    anchor,
    middle: angle > 0,
    width: measure(shown, size, weight),
  });
}

/** @param {Pen} pen @param {MatrixPicture} picture */
function paintAxisNames(pen, { model, geometry, theme, measure }) {
  const x = geometry.left - GAP;
  const lettering = { size: 11, weight: 600, fill: theme.muted, anchor: /** @type {const} */ ("end") };
  [rowAxisText(model), columnAxisText(model)].forEach((text, line) => {
    const shown = ellipsised(text, x, 11, measure, 600);
    const width = measure(shown, 11, 600);
    pen.text(shown, x, geometry.top - GAP - 15 * line, { ...lettering, width });
  });
}

/**
 * Paints the crosshair of the active cell, and the outline of the pinned cell.
 *
 * @param {Pen} pen
 * @param {MatrixPicture} picture
 * @param {{active: Spot | null, pinned: Cell | null}} marked
 */
export function paintMarks(pen, picture, { active, pinned }) {
  const { theme } = picture;
  pen.clipped(cellArea(picture), () => {
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
  const [left, right] = [columnEdge(picture, 0), columnEdge(picture, model.columnCount)];
  const [top, bottom] = [rowEdge(picture, 0), rowEdge(picture, model.rowCount)];
  // A band thinner than its outline becomes a single line, so that adjacent cells stay visible.
  /** @param {number} start @param {number} end */
  const thickness = (start, end) => (end - start < 4 ? 0 : end - start);
  if (row !== null) {
    const y = rowEdge(picture, row);
    paintBand(pen, picture, left, y, right - left, thickness(y, rowEdge(picture, row + 1)));
  }
  if (column !== null) {
    const x = columnEdge(picture, column);
    paintBand(pen, picture, x, top, thickness(x, columnEdge(picture, column + 1)), bottom - top);
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

/** @param {Pen} pen @param {MatrixPicture} picture @param {Cell} cell @param {string} stroke @param {number} line */
function paintOutline(pen, picture, { row, column }, stroke, line) {
  const [x, y] = [columnEdge(picture, column), rowEdge(picture, row)];
  const gap = gapOf(picture);
  // The outline of a very small cell is enlarged to stay visible.
  const width = Math.max(columnEdge(picture, column + 1) - x - gap, 3) + 1;
  const height = Math.max(rowEdge(picture, row + 1) - y - gap, 3) + 1;
  pen.rectangle(x - 0.5, y - 0.5, width, height, { stroke: picture.theme.background, line: line + 2 });
  pen.rectangle(x - 0.5, y - 0.5, width, height, { stroke, line });
}

/** Paints the highlighted labels of a cell. @param {Pen} pen @param {MatrixPicture} picture @param {Spot} spot
 * @param {string} fill */
function paintTags(pen, picture, { row, column }, fill) {
  const { geometry, view } = picture;
  if (row !== null) {
    const area = { x: 0, y: geometry.top - 8, width: geometry.left, height: view.height };
    pen.clipped(area, () => paintRowTag(pen, picture, row, fill));
  }
  if (column !== null) {
    const area = { x: geometry.left - 12, y: 0, width: view.width, height: geometry.top };
    pen.clipped(area, () => paintColumnTag(pen, picture, column, fill));
  }
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {number} row @param {string} fill */
function paintRowTag(pen, picture, row, fill) {
  const { model, geometry, theme, measure } = picture;
  const { size, every } = geometry.rows;
  const right = geometry.left - GAP;
  const shown = ellipsised(model.rowLabels[row], right - 2, size, measure, 600);
  const width = measure(shown, size, 600);
  const y = rowLabelMiddle(picture, row);
  if (y < geometry.top - 1) return;
  clearNeighbours(pen, theme, row, 17 / geometry.pitchY, model.rowLabels, every, (near) => {
    return { x: 0, y: rowLabelMiddle(picture, near) - 9, width: right + 2, height: 18 };
  });
  pen.rectangle(right - width - 4, y - 8, width + 8, 16, { fill, radius: 4 });
  pen.text(shown, right, y + 0.5, { size, weight: 600, fill: theme.background, anchor: "end", middle: true });
}

/** @param {Pen} pen @param {MatrixPicture} picture @param {number} column @param {string} fill */
function paintColumnTag(pen, picture, column, fill) {
  const { model, geometry, theme, measure } = picture;
  const { size, limit, angle, every } = geometry.columns;
  const shown = ellipsised(model.columnLabels[column], limit * BOLD, size, measure, 600);
  const width = measure(shown, size, 600);
  const reach = angle === 0 ? width / 2 + limit / 2 + 8 : 17;
  const room = angle === 0 ? limit + 4 : 18;
  clearNeighbours(pen, theme, column, reach / geometry.pitchX, model.columnLabels, every, (near) => {
    return { x: columnLabelMiddle(picture, near) - room / 2, y: 0, width: room, height: geometry.top - 2 };
  });
  if (columnMiddle(picture, column) < geometry.left - 1) return;
  atColumnLabel(pen, picture, column, () => {
    pen.rectangle(angle ? -4 : -width / 2 - 4, angle ? -8 : -12, width + 8, 16, { fill, radius: 4 });
    paintColumnLabel(pen, picture, shown, theme.background, 600);
  });
}

/**
 * Hides thinned labels that a tag would partly cover.
 *
 * @param {Pen} pen
 * @param {import("../core/theme.js").Theme} theme
 * @param {number} index
 * @param {number} span
 * @param {string[]} labels
 * @param {number} every
 * @param {(near: number) => Area} areaOf
 */
function clearNeighbours(pen, theme, index, span, labels, every, areaOf) {
  if (every === 1) return;
  const last = Math.min(index + Math.ceil(span), labels.length - 1);
  for (let near = Math.max(index - Math.ceil(span), 0); near <= last; near++) {
    if (Math.abs(near - index) > span || !isShown(labels[near], near, every)) continue;
    const { x, y, width, height } = areaOf(near);
    pen.rectangle(x, y, width, height, { fill: theme.background });
  }
}
