// Creates the picture of the token map's visible area for a file, with caption and legend.

import { addCaption, PNG_RATIO } from "../core/export.js";
import { readColors } from "../core/scale.js";
import { computeMapLayout } from "./layout.js";
import { createColoring, unpackMap } from "./model.js";
import { createLegend, paintMap, paintTrajectory } from "./paint.js";

const BOX = { width: 960, height: 600 }; // size that replaces the size on the screen
const MIN_WIDTH = 600;

/**
 * @param {import("./paint.js").MapPicture} picture
 * @param {import("./model.js").Point | null} pinned the mark whose trajectory is drawn
 */
export function exportMap(picture, pinned) {
  const { model, theme, measure, geometry } = picture;
  const width = Math.max(geometry.width, MIN_WIDTH);
  const legend = createLegend(picture, width);
  const [{ layers }, ...others] = geometry.panels;
  const layerNote = others.length || layers.length > 1 ? "" : `: layer ${layers[0]}`;
  return addCaption({
    theme,
    measure,
    caption: `${model.caption}${layerNote}. ${model.variance}`,
    fileName: model.fileName,
    ratio: PNG_RATIO,
    width,
    height: geometry.height,
    paint: (pen) => {
      paintMap(pen, picture);
      if (pinned) paintTrajectory(pen, picture, pinned, true);
    },
    footer: { width, height: legend.height + 8, paint: legend.paint },
  });
}

/**
 * Renders a payload as a file, without a browser.
 *
 * @type {import("../core/export.js").FileOf}
 */
export function renderMapFile(bytes, { theme, measure }) {
  const model = unpackMap(bytes);
  const { start } = model;
  const ramp = readColors(theme.isDark ? model.darkTable : model.lightTable).css;
  const colors = createColoring(model, start.by, ramp);
  const geometry = computeMapLayout(model, BOX, start, null);
  const display = { by: start.by, highlighted: null, animatedPoints: null };
  return exportMap({ model, theme, measure, geometry, colors, ...display }, null);
}
