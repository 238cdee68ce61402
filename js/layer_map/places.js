// Hit testing of marks, by point and by lasso.

import { toPlane } from "./layout.js";
import { enclosed, nearest, pointsOf } from "./model.js";

/**
 * @typedef {import("./layout.js").MapGeometry} MapGeometry
 * @typedef {import("./layout.js").Panel} Panel
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Point} Point
 * @typedef {import("./model.js").Spot} Spot
 */

const REACH = 14; // maximum distance from a mark, in pixels

/**
 * The mark closest to a spot in the visible layers, or null if none is close.
 *
 * @param {MapModel} model
 * @param {MapGeometry} geometry
 * @param {Spot} spot in pixels
 * @returns {Point | null}
 */
export function markAt(model, { panels }, spot) {
  const panel = panels.find(({ area }) => isIn(area, spot));
  if (!panel) return null;
  let best = null;
  const meant = toPlane(panel.lens, spot);
  for (const layer of panel.layers) {
    const near = nearest(pointsOf(model, layer), meant, REACH / panel.lens.scale);
    if (near && (!best || near.distance < best.distance)) best = { ...near, layer };
  }
  return best && { index: best.index, layer: best.layer };
}

/**
 * The marks within a lasso in any visible layer.
 *
 * @param {MapModel} model
 * @param {Panel} panel
 * @param {Spot[]} line in pixels
 */
export function marksWithin(model, { layers, lens }, line) {
  const drawn = line.map((spot) => toPlane(lens, spot));
  const each = layers.map((layer) => enclosed(pointsOf(model, layer), drawn));
  return [...new Set(each.flat())].sort((one, other) => one - other);
}

/** @param {import("../core/pen.js").Area} area @param {Spot} spot */
function isIn({ x, y, width, height }, spot) {
  return spot.x >= x && spot.x < x + width && spot.y >= y && spot.y < y + height;
}
