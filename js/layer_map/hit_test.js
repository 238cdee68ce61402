// Finds the mark at a point, or the marks within a lasso.

import { unprojectPoint } from "./layout.js";
import { findEnclosed, findNearest, getPoints } from "./model.js";

/**
 * @typedef {import("./layout.js").MapGeometry} MapGeometry
 * @typedef {import("./layout.js").Panel} Panel
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Point} Point
 * @typedef {import("./model.js").Spot} Spot
 */

const MAX_DISTANCE = 14; // maximum distance from a mark, in pixels

/**
 * Returns the mark closest to a spot in the visible layers, or null if none is close enough.
 *
 * @param {MapModel} model
 * @param {MapGeometry} geometry
 * @param {Spot} spot in pixels
 * @returns {Point | null}
 */
export function findMark(model, { panels }, spot) {
  const panel = panels.find(({ area }) => isIn(area, spot));
  if (!panel) return null;
  let best = null;
  const target = unprojectPoint(panel.transform, spot);
  for (const layer of panel.layers) {
    const nearest = findNearest(getPoints(model, layer), target, MAX_DISTANCE / panel.transform.scale);
    if (nearest && (!best || nearest.distance < best.distance)) best = { ...nearest, layer };
  }
  return best && { index: best.index, layer: best.layer };
}

/**
 * Returns the marks within a lasso in any visible layer.
 *
 * @param {MapModel} model
 * @param {Panel} panel
 * @param {Spot[]} line in pixels
 */
export function findMarksWithin(model, { layers, transform }, line) {
  const lasso = line.map((spot) => unprojectPoint(transform, spot));
  const isEnclosed = new Uint8Array(model.count);
  for (const layer of layers)
    for (const mark of findEnclosed(getPoints(model, layer), lasso)) isEnclosed[mark] = 1;
  /** @type {number[]} */
  const marks = [];
  for (let mark = 0; mark < model.count; mark++) if (isEnclosed[mark]) marks.push(mark);
  return marks;
}

/** @param {import("../core/pen.js").Area} area @param {Spot} spot */
function isIn({ x, y, width, height }, spot) {
  return spot.x >= x && spot.x < x + width && spot.y >= y && spot.y < y + height;
}
