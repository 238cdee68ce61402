// The head view as a picture in a file.

import { wrapped } from "../core/text.js";
import { barsOf, chosenOf, drawnOf } from "./drawn.js";
import { paintChosen, paintHeads } from "./paint.js";
import { shareSentence, specialSentence, titleOf } from "./sentences.js";

const PNG_MOST = 9e6; // pixels above which a PNG is saved at one pixel per CSS pixel
const WHOLE = 12_000; // maximum length of a file with the whole text, in pixels

/**
 * The whole text if the picture has a reasonable size, otherwise the visible part, with a caption.
 *
 * @param {import("./paint.js").HeadPicture} shown
 * @param {import("./drawn.js").Looks} looks
 * @param {import("../core/view.js").Pins} pins
 * @returns {import("../core/saving.js").Saved}
 */
export function savedHeads(shown, looks, pins) {
  const { measure, places } = shown;
  const { theme, model } = shown;
  const { contentWidth, contentHeight } = shown.geometry;
  const whole = Math.max(contentWidth, contentHeight) <= WHOLE;
  const all = { x: 0, y: 0, width: Math.ceil(contentWidth), height: Math.ceil(contentHeight) };
  const picture = { ...shown, view: whole ? all : shown.view };
  const { width } = picture.view;
  const title = titleOf(model, looks.series);
  const drawn = drawnOf(picture, looks);
  const units = pins.units.filter((unit) => places.has(unit));
  const weights = units.length ? chosenOf(picture, looks, { ...pins, units }) : null;
  const bars = weights ? new Map() : barsOf(picture, looks, drawn.queries);
  const lines = [title, model.caption, shareSentence(model, drawn) + specialSentence(bars)].flatMap(
    (text, i) => {
      const style = i ? { size: 12, fill: theme.muted } : { size: 15, fill: theme.ink, weight: 600 };
      return wrapped(text, width - 40, style.size, measure).map((line) => ({ line, style }));
    },
  );
  const top = 24 + lines.length * 18;
  const height = picture.view.height + top + 10;
  return {
    width,
    height,
    ratio: height * width > PNG_MOST ? 1 : 2,
    title,
    fileName: model.fileName,
    theme,
    paint: (pen) => {
      pen.moved(0, top, 0, () => {
        paintHeads(pen, picture, weights ? [] : drawn.lines, bars);
        if (weights) paintChosen(pen, picture, weights);
      });
      // Clipped, because lines to tokens out of view would cross the caption.
      pen.rectangle(0, 0, width, top, { fill: theme.background });
      lines.forEach(({ line, style }, i) => {
        pen.text(line, 20, 26 + i * 18, style);
      });
    },
  };
}
