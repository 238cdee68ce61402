// Creates the picture of a head view for a file.

import { wrapText } from "../core/text.js";
import { computeActiveWeights, computeBars, selectVisibleLines } from "./marks.js";
import { paintActive, paintHeads } from "./paint.js";
import { describeLines, describeSpecials, formatTitle } from "./sentences.js";

const MAX_PNG_PIXELS = 9e6; // number of pixels above which a PNG has only one pixel per CSS pixel
const MAX_SIDE = 12_000; // maximum width and height of a file with the whole text, in pixels

/**
 * Returns a captioned picture of the whole text, or of the visible part if the whole text would be too large.
 *
 * @param {import("./paint.js").HeadPicture} screen
 * @param {import("./marks.js").MarkInputs} inputs
 * @param {import("../core/selection.js").Pins} pins
 * @returns {import("../core/export.js").FilePicture}
 */
export function exportHeads(screen, inputs, pins) {
  const { measure, unitIndices } = screen;
  const { theme, model } = screen;
  const { contentWidth, contentHeight } = screen.geometry;
  const isWhole = Math.max(contentWidth, contentHeight) <= MAX_SIDE;
  const all = { x: 0, y: 0, width: Math.ceil(contentWidth), height: Math.ceil(contentHeight) };
  const picture = { ...screen, viewport: isWhole ? all : screen.viewport };
  const { width } = picture.viewport;
  const title = formatTitle(model, inputs.series);
  const selected = selectVisibleLines(picture, inputs);
  const units = pins.units.filter((unit) => unitIndices.has(unit));
  const weights = units.length ? computeActiveWeights(picture, inputs, { ...pins, units }) : null;
  const bars = weights ? new Map() : computeBars(picture, inputs, selected.queries);
  const lines = [title, model.caption, describeLines(model, selected) + describeSpecials(bars)].flatMap(
    (text, i) => {
      const style = i ? { size: 12, fill: theme.muted } : { size: 15, fill: theme.ink, weight: 600 };
      return wrapText(text, width - 40, style.size, measure).map((line) => ({ line, style }));
    },
  );
  const top = 24 + lines.length * 18;
  const height = picture.viewport.height + top + 10;
  return {
    width,
    height,
    ratio: height * width > MAX_PNG_PIXELS ? 1 : 2,
    title,
    fileName: model.fileName,
    theme,
    paint: (pen) => {
      pen.transform(0, top, 0, () => {
        paintHeads(pen, picture, weights ? [] : selected.lines, bars);
        if (weights) paintActive(pen, picture, weights);
      });
      // The picture is clipped, because lines to tokens outside the visible area would cross the caption.
      pen.rectangle(0, 0, width, top, { fill: theme.background });
      lines.forEach(({ line, style }, i) => {
        pen.text(line, 20, 26 + i * 18, style);
      });
    },
  };
}
