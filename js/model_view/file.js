// The model view as a file: all heads in the current order, with a caption.

import { captioned, PNG_PIXELS, PNG_RATIO } from "../core/saving.js";
import { colorsOf } from "../core/scale.js";
import {
  arrangedRows,
  blockSentence,
  gridLayout,
  marksLabels,
  orderSentence,
  UNSORTED,
  unpackThumbnails,
} from "./model.js";
import { paintGrid } from "./paint.js";

const LEAST_WIDTH = 900; // minimum width of a file, independent of the window
const CAPTION_LINES = 6;

/**
 * @param {Omit<import("./paint.js").GridPicture, "geometry">} picture
 * @param {number} width of the screen
 * @param {import("../core/text.js").Measure} measure
 */
export function savedGrid(picture, width, measure) {
  const { model, theme, colors, sort } = picture;
  const geometry = gridLayout(model, Math.max(width, LEAST_WIDTH), sort, measure);
  const underlined = marksLabels(model) ? "Underlined: heads with a label" : "";
  const said = [model.caption, model.source, orderSentence(sort), blockSentence(model), underlined];
  return captioned({
    theme,
    colors,
    legend: model,
    measure,
    caption: said.filter(Boolean).join(". "),
    mostLines: CAPTION_LINES,
    fileName: model.fileName,
    ratio: geometry.width * geometry.height * PNG_RATIO ** 2 <= PNG_PIXELS ? PNG_RATIO : 1,
    width: geometry.width,
    height: geometry.height,
    paint: (pen) => paintGrid(pen, { ...picture, geometry }),
  });
}

/**
 * A payload as a file, without a screen.
 *
 * @type {import("../core/saving.js").FileOf}
 */
export function gridFile(bytes, { theme, measure }) {
  const model = unpackThumbnails(bytes);
  const colors = colorsOf(theme.dark ? model.darkTable : model.lightTable);
  const rows = arrangedRows(model, UNSORTED);
  return savedGrid({ model, theme, colors, rows, sort: UNSORTED }, 0, measure);
}
