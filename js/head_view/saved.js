// The head view as a picture in a file.

import { wrapped } from "../core/text.js";
import { paintChosen, paintHeads } from "./paint.js";
import { shareSentence, specialSentence } from "./sentences.js";

const PNG_MOST = 9e6; // pixels of a picture above which it is saved at the plain resolution
const WHOLE = 12_000; // pixels up to which a file holds the whole text

/**
 * @typedef {object} Drawing
 * @property {import("./paint.js").HeadPicture} picture
 * @property {import("../core/text.js").Measure} measure
 * @property {string} title
 * @property {(picture: import("./paint.js").HeadPicture) => import("./lines.js").Drawn} linesOf
 * @property {(queries: number[]) => Map<number, number>} barsOf
 * @property {import("./paint.js").Chosen | null} weights of what is pinned
 */

/**
 * The whole text where that makes a reasonable picture, else the part in view; with what a caption says.
 *
 * @param {Drawing} drawing
 * @returns {import("../core/saving.js").Saved}
 */
export function savedHeads({ picture: shown, measure, title, linesOf, barsOf, weights }) {
  const { theme, model } = shown;
  const { contentWidth, contentHeight } = shown.geometry;
  const whole = Math.max(contentWidth, contentHeight) <= WHOLE;
  const all = { x: 0, y: 0, width: Math.ceil(contentWidth), height: Math.ceil(contentHeight) };
  const picture = { ...shown, view: whole ? all : shown.view };
  const { width } = picture.view;
  const drawn = linesOf(picture);
  const bars = weights ? new Map() : barsOf(drawn.queries);
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
      // Lines to tokens out of view would run through the caption.
      pen.rectangle(0, 0, width, top, { fill: theme.background });
      lines.forEach(({ line, style }, i) => {
        pen.text(line, 20, 26 + i * 18, style);
      });
    },
  };
}
