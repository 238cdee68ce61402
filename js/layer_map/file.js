// The map as a file: the visible part, with caption and legend.

import { framed, PNG_RATIO } from "../core/saving.js";
import { colorsOf } from "../core/scale.js";
import { mapLayout } from "./layout.js";
import { coloring, unpackMap } from "./model.js";
import { legendOf, paintMap, paintWay } from "./paint.js";

const BOX = { width: 960, height: 600 }; // size of a file without a screen
const LEAST_WIDTH = 600;

/**
 * @param {import("./paint.js").MapPicture} picture
 * @param {import("./model.js").Point | null} pinned the mark whose trajectory is drawn
 */
export function savedMap(picture, pinned) {
  const { model, theme, measure, geometry } = picture;
  const width = Math.max(geometry.width, LEAST_WIDTH);
  const legend = legendOf(picture, width);
  const [{ layers }, ...others] = geometry.panels;
  const which = others.length || layers.length > 1 ? "" : `: layer ${layers[0]}`;
  return framed({
    theme,
    measure,
    caption: `${model.caption}${which}. ${model.variance}`,
    fileName: model.fileName,
    ratio: PNG_RATIO,
    width,
    height: geometry.height,
    paint: (pen) => {
      paintMap(pen, picture);
      if (pinned) paintWay(pen, picture, pinned, true);
    },
    foot: { width, height: legend.height + 8, paint: legend.paint },
  });
}

/**
 * A payload as a file, without a screen.
 *
 * @type {import("../core/saving.js").FileOf}
 */
export function mapFile(bytes, { theme, measure }) {
  const model = unpackMap(bytes);
  const { start } = model;
  const ramp = colorsOf(theme.dark ? model.darkTable : model.lightTable).css;
  const colors = coloring(model, start.by, ramp);
  const geometry = mapLayout(model, BOX, start, null);
  const seen = { by: start.by, emphasised: null, moving: null };
  return savedMap({ model, theme, measure, geometry, colors, ...seen }, null);
}
