// Renders the head view as a file, without a browser.

import { Payload } from "../core/payload.js";
import { MEAN } from "../core/selection.js";
import { Attention } from "./attention.js";
import { exportHeads } from "./export.js";
import { computeHeadLayout } from "./layout.js";
import { createLineFilter } from "./lines.js";
import { labelUnit, unpackHeads } from "./model.js";

const BOX = { width: 880, height: 640 }; // size that replaces the size on the screen

/**
 * Renders a payload, in its initial state, as a file.
 *
 * @type {import("../core/export.js").FileOf}
 */
export function renderHeadFile(bytes, { theme, measure }) {
  /** @type {Payload<{selection: import("../core/selection.js").VersionedSelection}>} */
  const payload = new Payload(bytes);
  const { heads, options, pins } = payload.description.selection.value;
  const model = unpackHeads(bytes);
  /** @type {import("../core/selection.js").Head[]} */
  const series = model.rolled ? [MEAN] : heads;
  const filter = createLineFilter(model, options);
  const labels = filter.units.map((unit) => labelUnit(model, unit));
  const geometry = computeHeadLayout(labels, BOX, options, measure, model.isRuler);
  const unitIndices = new Map(filter.units.map((unit, index) => [unit, index]));
  const attention = new Attention(model);
  if (pins.side === "key") attention.prepareColumns([...model.heads.keys()], Number.POSITIVE_INFINITY);
  const viewport = { x: 0, y: 0, ...BOX };
  const picture = { model, theme, measure, geometry, units: filter.units, unitIndices, viewport };
  return exportHeads(picture, { attention, series, filter, options }, pins);
}
