// Creates the picture of a heatmap for a file, which contains all cells if possible.

import { addLegend, PNG_PIXELS, PNG_RATIO } from "../core/export.js";
import { readColors } from "../core/scale.js";
import { formatCount } from "../core/text.js";
import { computeMatrixLayout, layOutAtPitch, READABLE_PITCH } from "./layout.js";
import { unpackMatrix } from "./model.js";
import { paintMatrix } from "./paint.js";

/** @typedef {import("./paint.js").MatrixPicture} MatrixPicture */ /** @typedef {"png" | "svg"} Kind */

const MAX_PNG_SIDE = 12_000;
const MAX_SVG_CELLS = 40_000;
const MIN_MARGINS = 140; // space reserved for the caption, the legend and the margins
const BOX = { width: 1000, height: 860, inView: 560 }; // size that replaces the size on the screen

/**
 * Returns the reason why the heatmap cannot be saved as SVG, or null if it can.
 *
 * @param {import("./model.js").MatrixModel} model
 */
export function explainRefusal({ rowCount, columnCount }) {
  const cells = rowCount * columnCount;
  if (cells <= MAX_SVG_CELLS) return null;
  const [count, maximum] = [cells, MAX_SVG_CELLS].map(formatCount);
  return `This matrix has ${count} cells, but an SVG is limited to ${maximum}. Save a PNG instead.`;
}

/**
 * @param {MatrixPicture} screen
 * @param {Kind} kind
 */
export function exportMatrix(screen, kind) {
  const { model, theme, colors, measure } = screen;
  const picture = kind === "svg" ? layOutWhole(screen, chooseFilePitch(screen, 2), 1) : layOutPng(screen);
  return addLegend({
    theme,
    colors,
    legend: model,
    measure,
    caption: model.caption,
    fileName: model.fileName,
    ratio: picture.ratio,
    width: picture.viewport.width,
    height: picture.viewport.height,
    paint: (pen) => pen.clip({ ...picture.viewport, x: 0, y: 0 }, () => paintMatrix(pen, picture)),
  });
}

/**
 * Returns the cell size in a file: the size on the screen, but at least a readable size.
 *
 * @param {MatrixPicture} screen @param {number} minimum
 */
function chooseFilePitch({ geometry, model }, minimum) {
  return Math.max(geometry.pitchX, model.square ? READABLE_PITCH : minimum);
}

/**
 * Returns the layout of the whole matrix at the largest cell size that fits, or, if none fits, of the visible part.
 *
 * @param {MatrixPicture} screen
 */
function layOutPng(screen) {
  const preferredPitch = chooseFilePitch(screen, 0);
  for (const pitch of [preferredPitch, screen.geometry.pitchX, 8, 4, 2, 1].filter(
    (size) => size <= preferredPitch,
  )) {
    for (const ratio of [PNG_RATIO, 1]) {
      const picture = layOutWhole(screen, pitch, ratio);
      const [width, height] = [picture.viewport.width, picture.viewport.height].map(
        (length) => (length + MIN_MARGINS) * ratio,
      );
      if (Math.max(width, height) <= MAX_PNG_SIDE && width * height <= PNG_PIXELS) return picture;
    }
  }
  return { ...screen, ratio: PNG_RATIO };
}

/** @param {MatrixPicture} screen @param {number} pitch @param {number} ratio @returns {MatrixPicture} */
function layOutWhole(screen, pitch, ratio) {
  const geometry = layOutAtPitch(screen.model, screen.measure, screen.geometry, pitch);
  const [width, height] = [geometry.contentWidth, geometry.contentHeight].map(Math.ceil);
  return { ...screen, geometry, ratio, viewport: { x: 0, y: 0, width, height } };
}

/**
 * Renders a payload as a file, without a browser.
 *
 * @type {import("../core/export.js").FileOf}
 */
export function renderMatrixFile(bytes, { theme, measure }, kind) {
  const model = unpackMatrix(bytes);
  const reason = kind === "svg" && explainRefusal(model);
  if (reason) throw new RangeError(reason);
  const colors = readColors(theme.isDark ? model.darkTable : model.lightTable);
  const geometry = computeMatrixLayout(model, BOX, { mode: "auto", factor: 1 }, measure);
  const viewport = { x: 0, y: 0, width: BOX.width, height: BOX.height };
  return exportMatrix({ model, theme, colors, measure, geometry, ratio: 1, viewport }, kind);
}
