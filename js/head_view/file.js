// The head view as a file: the picture with its title, its text and what its lines stand for.

import { wrapped } from "../core/text.js";
import { Attention } from "./attention.js";
import { headLayout, inView } from "./layout.js";
import { linesFrom, permitted } from "./lines.js";
import { layerName, seriesName, unpackHeads } from "./model.js";
import { chosenOf, paintChosen, paintHeads } from "./paint.js";
import { shareSentence } from "./parts.js";

/**
 * @typedef {import("../core/saving.js").Saved} Saved
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("./model.js").Head} Head
 * @typedef {import("./model.js").Pins} Pins
 */

/**
 * What is shown in a picture.
 *
 * @typedef {object} Looks
 * @property {Attention} attention
 * @property {Head[]} series
 * @property {import("./lines.js").Permitted} allowed
 * @property {Pins} pins
 * @property {number | null} step the threshold of the lines; null picks one
 */

const PNG_MOST = 9e6; // pixels of a picture above which it is saved at the plain resolution
const WHOLE = 12_000; // pixels up to which a file holds the whole text
const BOX = { width: 880, height: 640 }; // of a file that no screen gives a size

/**
 * @param {Pick<HeadPicture, "model">} picture
 * @param {Head[]} series
 */
export function titleOf({ model }, series) {
  const { title, layer, rolled } = model;
  const name = layerName(model, layer);
  return rolled ? `${title} layer ${name}` : `${title} in layer ${name}, ${seriesName(model, series)}`;
}

/**
 * What is drawn of the queries that a picture shows.
 *
 * @param {HeadPicture} picture
 * @param {Pick<Looks, "attention" | "series" | "allowed" | "step">} looks
 */
export function drawnOf(picture, { attention, series, allowed, step }) {
  const [first, end] = inView(picture);
  return linesFrom(attention, series, picture.shown.slice(first, end), allowed, step);
}

/**
 * The whole text where that makes a reasonable picture, else the part in view; with what a caption says.
 *
 * @param {HeadPicture} screen
 * @param {Looks} looks
 * @returns {Saved}
 */
export function savedHeads(screen, looks) {
  const { theme, measure, model, geometry, places } = screen;
  const { contentWidth, contentHeight } = geometry;
  const whole = Math.max(contentWidth, contentHeight) <= WHOLE;
  const all = { x: 0, y: 0, width: Math.ceil(contentWidth), height: Math.ceil(contentHeight) };
  const picture = { ...screen, view: whole ? all : screen.view };
  const { width } = picture.view;
  const drawn = drawnOf(picture, looks);
  const title = titleOf(picture, looks.series);
  const lines = [title, model.caption, shareSentence(model, drawn)].flatMap((text, i) => {
    const style = i ? { size: 12, fill: theme.muted } : { size: 15, fill: theme.ink, weight: 600 };
    return wrapped(text, width - 40, style.size, measure).map((line) => ({ line, style }));
  });
  const top = 24 + lines.length * 18;
  const height = picture.view.height + top + 10;
  const units = looks.pins.units.filter((unit) => places.has(unit));
  const weights = units.length ? chosenOf(picture, looks, { ...looks.pins, units }) : null;
  return {
    width,
    height,
    ratio: height * width > PNG_MOST ? 1 : 2,
    title,
    fileName: model.fileName,
    theme,
    paint: (pen) => {
      pen.moved(0, top, 0, () => {
        paintHeads(pen, picture, weights ? [] : drawn.lines);
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

/**
 * A payload as a file, as its wish says and without a screen.
 *
 * @type {import("../core/saving.js").FileOf}
 */
export function headFile(bytes, { theme, measure }) {
  const model = unpackHeads(bytes);
  const { heads, options, pins } = model.wish;
  const allowed = permitted(model, options);
  const labels = allowed.shown.map((unit) => model.labels[unit]);
  const geometry = headLayout(labels, BOX, options, measure);
  const view = { x: 0, y: 0, ...BOX };
  const places = new Map(allowed.shown.map((unit, index) => [unit, index]));
  const attention = new Attention(model);
  if (pins.side === "key") attention.prepare(Object.keys(model.heads).map(Number), Number.POSITIVE_INFINITY);
  const picture = { model, theme, measure, geometry, shown: allowed.shown, places, view };
  return savedHeads(picture, { attention, series: heads, allowed, pins, step: options.step });
}
