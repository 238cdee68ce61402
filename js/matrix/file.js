// The heatmap as a file: the whole of it, whatever of it is in view.

import { captioned, PNG_PIXELS, PNG_RATIO } from "../core/saving.js";
import { coloursOf } from "../core/scale.js";
import { counted } from "../core/text.js";
import { atPitch, matrixLayout, READABLE_PITCH } from "./layout.js";
import { unpackMatrix } from "./model.js";
import { paintMatrix } from "./paint.js";

/** @typedef {import("./paint.js").MatrixPicture} MatrixPicture */
/** @typedef {"png" | "svg"} Kind */

const PNG_SIDE = 12_000;
const SVG_CELLS = 40_000;
const AROUND = 140; // at least what caption, legend and margins take
const BOX = { width: 1000, height: 860, inView: 560 }; // of a file that no screen gives a size

/**
 * A sentence that says why there will be no SVG, or null.
 *
 * @param {import("./model.js").MatrixModel} model
 */
export function refusal({ rowCount, columnCount }) {
  const cells = rowCount * columnCount;
  if (cells <= SVG_CELLS) return null;
  const [found, most] = [cells, SVG_CELLS].map(counted);
  return `This matrix has ${found} cells; an SVG here holds at most ${most}. Save it as PNG instead.`;
}

/**
 * @param {MatrixPicture} screen
 * @param {Kind} kind
 */
export function savedMatrix(screen, kind) {
  const { model, theme, colours, measure } = screen;
  const picture = kind === "svg" ? wholeAt(screen, pitchOfFiles(screen, 2), 1) : wholeAsPng(screen);
  return captioned({
    theme,
    colours,
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

/** The pitch of a file, where it is not too large: that of the screen, or a readable one.
 *
 * @param {MatrixPicture} screen @param {number} least */
function pitchOfFiles({ geometry, model }, least) {
  return Math.max(geometry.pitchX, model.square ? READABLE_PITCH : least);
}

/** The whole matrix at the largest of a few pitches that makes a reasonable file; what is in view if none does.
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
  const colours = coloursOf(theme.dark ? model.darkTable : model.lightTable);
  const geometry = matrixLayout(model, BOX, { mode: "auto", factor: 1 }, measure);
  const view = { x: 0, y: 0, width: BOX.width, height: BOX.height };
  return savedMatrix({ model, theme, colours, measure, geometry, ratio: 1, view }, kind);
}
