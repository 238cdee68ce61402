// The heatmap as a file, always complete.

import { captioned, PNG_PIXELS, PNG_RATIO } from "../core/saving.js";
import { colorsOf } from "../core/scale.js";
import { counted } from "../core/text.js";
import { atPitch, matrixLayout, READABLE_PITCH } from "./layout.js";
import { unpackMatrix } from "./model.js";
import { paintMatrix } from "./paint.js";

/** @typedef {import("./paint.js").MatrixPicture} MatrixPicture */
/** @typedef {"png" | "svg"} Kind */

const PNG_SIDE = 12_000;
const SVG_CELLS = 40_000;
const AROUND = 140; // minimum space for caption, legend and margins
const BOX = { width: 1000, height: 860, inView: 560 }; // size of a file without a screen

/**
 * The reason why there is no SVG, or null.
 *
 * @param {import("./model.js").MatrixModel} model
 */
export function refusal({ rowCount, columnCount }) {
  const cells = rowCount * columnCount;
  if (cells <= SVG_CELLS) return null;
  const [found, most] = [cells, SVG_CELLS].map(counted);
  return `This matrix has ${found} cells, but an SVG is limited to ${most}. Save a PNG instead.`;
}

/**
 * @param {MatrixPicture} screen
 * @param {Kind} kind
 */
export function savedMatrix(screen, kind) {
  const { model, theme, colors, measure } = screen;
  const picture = kind === "svg" ? wholeAt(screen, pitchOfFiles(screen, 2), 1) : wholeAsPng(screen);
  return captioned({
    theme,
    colors,
    legend: model,
    measure,
    caption: model.caption,
    fileName: model.fileName,
    ratio: picture.ratio,
    width: picture.view.width,
    height: picture.view.height,
    paint: (pen) => pen.clipped({ ...picture.view, x: 0, y: 0 }, () => paintMatrix(pen, picture)),
  });
}

/** The cell size in a file: that of the screen, or a readable one, unless the file would be too large.
 *
 * @param {MatrixPicture} screen @param {number} least */
function pitchOfFiles({ geometry, model }, least) {
  return Math.max(geometry.pitchX, model.square ? READABLE_PITCH : least);
}

/** The whole matrix at the largest possible cell size, or the visible part if none fits.
 *
 * @param {MatrixPicture} screen */
function wholeAsPng(screen) {
  const wanted = pitchOfFiles(screen, 0);
  for (const pitch of [wanted, screen.geometry.pitchX, 8, 4, 2, 1].filter((one) => one <= wanted)) {
    for (const ratio of [PNG_RATIO, 1]) {
      const whole = wholeAt(screen, pitch, ratio);
      const [width, height] = [whole.view.width, whole.view.height].map(
        (length) => (length + AROUND) * ratio,
      );
      if (Math.max(width, height) <= PNG_SIDE && width * height <= PNG_PIXELS) return whole;
    }
  }
  return { ...screen, ratio: PNG_RATIO };
}

/** @param {MatrixPicture} screen @param {number} pitch @param {number} ratio @returns {MatrixPicture} */
function wholeAt(screen, pitch, ratio) {
  const geometry = atPitch(screen.model, screen.measure, screen.geometry, pitch);
  const [width, height] = [geometry.contentWidth, geometry.contentHeight].map(Math.ceil);
  return { ...screen, geometry, ratio, view: { x: 0, y: 0, width, height } };
}

/**
 * A payload as a file, without a screen.
 *
 * @type {import("../core/saving.js").FileOf}
 */
export function matrixFile(bytes, { theme, measure }, kind) {
  const model = unpackMatrix(bytes);
  const refused = kind === "svg" && refusal(model);
  if (refused) throw new RangeError(refused);
  const colors = colorsOf(theme.dark ? model.darkTable : model.lightTable);
  const geometry = matrixLayout(model, BOX, { mode: "auto", factor: 1 }, measure);
  const view = { x: 0, y: 0, width: BOX.width, height: BOX.height };
  return savedMatrix({ model, theme, colors, measure, geometry, ratio: 1, view }, kind);
}
