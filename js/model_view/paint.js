// Paints the model view. Thumbnails are images at the resolution of the screen, so that cells have sharp edges.

import { formatHead, GAP, getCorner, hasOwnNumbers } from "./model.js";

/**
 * @typedef {import("../core/pen.js").Pen} Pen
 * @typedef {import("./model.js").HeadIndex} HeadIndex
 */

/**
 * @typedef {object} GridPicture
 * @property {import("./model.js").GridModel} model
 * @property {import("../core/theme.js").Theme} theme
 * @property {import("../core/scale.js").Colors} colors
 * @property {import("./model.js").Row[]} rows
 * @property {import("./model.js").Sort} sort
 * @property {import("./model.js").GridGeometry} geometry
 */

/**
 * Returns a head as an image of `pixels` × `pixels`; if cells are smaller than pixels, each shows its strongest cell.
 *
 * @param {Pick<GridPicture, "model" | "colors">} picture
 * @param {HeadIndex} headIndex
 * @param {number} pixels
 * @returns {import("../core/pen.js").Pixels}
 */
export function headImage({ model, colors }, { layer, head }, pixels) {
  const { side, entries, headCount } = model;
  const rgba = new Uint32Array(pixels * pixels);
  const first = (layer * headCount + head) * side * side;
  const starts = Array.from({ length: pixels + 1 }, (_, pixel) => Math.floor((pixel * side) / pixels));
  for (let y = 0; y < pixels; y++) {
    const row = y * pixels;
    if (y > 0 && starts[y] === starts[y - 1]) {
      rgba.copyWithin(row, row - pixels, row); // Copy the previous row of pixels if it shows the same cells.
      continue;
    }
    for (let x = 0; x < pixels; x++) {
      rgba[row + x] = colors.rgba[strongestEntry(entries, first, side, starts, x, y)];
    }
  }
  return { width: pixels, height: pixels, rgba };
}

/**
 * @param {Uint8Array} entries @param {number} first @param {number} side @param {number[]} starts
 * @param {number} x @param {number} y
 */
function strongestEntry(entries, first, side, starts, x, y) {
  let best = 0;
  const bottom = Math.max(starts[y + 1], starts[y] + 1);
  const right = Math.max(starts[x + 1], starts[x] + 1);
  for (let row = starts[y]; row < bottom; row++) {
    for (let column = starts[x]; column < right; column++) {
      const entry = entries[first + row * side + column];
      if (entry > best) best = entry;
    }
  }
  return best;
}

/**
 * Paints all thumbnails with their numbers.
 *
 * @param {Pen} pen
 * @param {GridPicture} picture
 */
export function paintGrid(pen, picture) {
  const { model, theme, rows, sort, geometry } = picture;
  const { side } = geometry;
  // In an SVG, use an image with one pixel per cell, because rectangles would take many megabytes.
  const pixels = Number.isFinite(pen.resolution) ? Math.round(side * pen.resolution) : model.side;
  rows.forEach(({ layer, heads }, row) => {
    heads.forEach((head, column) => {
      const { x, y } = getCorner(geometry, { row, column });
      const headIndex = { layer, head };
      const area = { x, y, width: side, height: side };
      pen.image(headImage(picture, headIndex, pixels), area, formatHead(model, sort, headIndex));
      pen.rectangle(x - 0.5, y - 0.5, side + 1, side + 1, { stroke: theme.line });
      if (model.selected.some((other) => other.layer === layer && other.head === head)) {
        pen.rectangle(x - 1.5, y - 1.5, side + 3, side + 3, { stroke: theme.accent, lineWidth: 2.5 });
      }
      if (!model.marked || !model.labels[layer][head]) return;
      // Mark each labeled head with a short line below its thumbnail.
      pen.rectangle(x, y + side + 2, Math.max(8, Math.round(side / 4)), 2, { fill: theme.accent });
    });
  });
  paintNumbers(pen, picture);
}

/** Paints the numbers and the axis titles. @param {Pen} pen @param {GridPicture} picture */
function paintNumbers(pen, { geometry, rows, sort, model, theme }) {
  const { left, top, own, side } = geometry;
  const axis = { size: 11, anchor: /** @type {const} */ ("end"), fill: theme.muted, weight: 600 };
  pen.text("layer ↓", left - GAP, top - 8, axis);
  if (!hasOwnNumbers(sort)) {
    pen.text("head →", left - GAP, top - 23, axis);
    for (let head = 0; head < model.headCount; head++) {
      const x = getCorner(geometry, { row: 0, column: head }).x + side / 2;
      pen.text(String(head + 1), x, top - 8, { size: 12, anchor: "middle", fill: theme.ink });
    }
  }
  rows.forEach(({ layer, heads }, row) => {
    const { y } = getCorner(geometry, { row, column: 0 });
    pen.text(String(layer + 1), left - GAP, y + side / 2 + 4, { size: 12, anchor: "end", fill: theme.ink });
    if (!own) return;
    heads.forEach((head, column) => {
      const { x } = getCorner(geometry, { row, column });
      pen.text(String(head + 1), x, y - 4, { size: 11, fill: theme.muted });
    });
  });
}
