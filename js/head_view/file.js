// The head view as a file, without a screen.

import { Payload } from "../core/payload.js";
import { MEAN } from "../core/view.js";
import { Attention } from "./attention.js";
import { headLayout } from "./layout.js";
import { permitted } from "./lines.js";
import { unpackHeads } from "./model.js";
import { savedHeads } from "./saved.js";

const BOX = { width: 880, height: 640 }; // size of a file without a screen

/**
 * A payload as a file, in its initial state.
 *
 * @type {import("../core/saving.js").FileOf}
 */
export function headFile(bytes, { theme, measure }) {
  /** @type {import("../core/view.js").Shown} */
  const shown = new Payload(bytes).described.shown;
  const { heads, options, pins } = shown.view;
  const model = unpackHeads(bytes);
  /** @type {import("../core/view.js").Head[]} */
  const series = model.rolled ? [MEAN] : heads;
  const allowed = permitted(model, options);
  const names = allowed.shown.map((unit) => model.names[unit]);
  const geometry = headLayout(names, BOX, options, measure);
  const places = new Map(allowed.shown.map((unit, index) => [unit, index]));
  const attention = new Attention(model);
  if (pins.side === "key") attention.prepare([...model.heads.keys()], Number.POSITIVE_INFINITY);
  const view = { x: 0, y: 0, ...BOX };
  const picture = { model, theme, measure, geometry, shown: allowed.shown, places, view };
  return savedHeads(picture, { attention, series, allowed, options }, pins);
}
