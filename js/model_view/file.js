// Creates the picture of the model view for a file: all heads in the current order, with a caption.

import { addLegend, PNG_PIXELS, PNG_RATIO } from "../core/export.js";
import { readColors } from "../core/scale.js";
import {
  arrangeRows,
  computeGridLayout,
  describeBlocks,
  describeOrder,
  hasMarkedLabels,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { paintGrid } from "./paint.js";

const MIN_WIDTH = 900; // minimum width of a file, independent of the window
const MAX_CAPTION_LINES = 6;

/**
 * @param {Omit<import("./paint.js").GridPicture, "geometry">} picture
 * @param {number} width width of the view on the screen, in CSS pixels
 * @param {import("../core/text.js").Measure} measure
 */
export function exportGrid(picture, width, measure) {
  const { model, theme, colors, sort } = picture;
  const geometry = computeGridLayout(model, Math.max(width, MIN_WIDTH), sort, measure);
  const underlined = hasMarkedLabels(model) ? "Underlined: heads with a label" : "";
  const sentences = [model.caption, model.source, describeOrder(sort), describeBlocks(model), underlined];
  return addLegend({
    theme,
    colors,
    legend: model,
    measure,
    caption: sentences.filter(Boolean).join(". "),
    maxLines: MAX_CAPTION_LINES,
    fileName: model.fileName,
    ratio: geometry.width * geometry.height * PNG_RATIO ** 2 <= PNG_PIXELS ? PNG_RATIO : 1,
    width: geometry.width,
    height: geometry.height,
    paint: (pen) => paintGrid(pen, { ...picture, geometry }),
  });
}

/**
 * Renders a payload as a file, without a browser.
 *
 * @type {import("../core/export.js").FileOf}
 */
export function renderGridFile(bytes, { theme, measure }) {
  const model = unpackThumbnails(bytes);
  const colors = readColors(theme.isDark ? model.darkTable : model.lightTable);
  const rows = arrangeRows(model, UNSORTED);
  return exportGrid({ model, theme, colors, rows, sort: UNSORTED }, 0, measure);
}
