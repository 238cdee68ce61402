// Renders views as files without a browser, in the JavaScript engine embedded in Python.

import { renderSvg } from "./core/export.js";
import { createTheme, memoizeMeasure } from "./core/theme.js";
import { renderHeadFile } from "./head_view/file.js";
import { renderMapFile } from "./layer_map/file.js";
import { renderMatrixFile } from "./matrix/file.js";
import { renderGridFile } from "./model_view/file.js";

/** @typedef {import("./core/export.js").FilePicture} FilePicture */

/** @type {Record<string, import("./core/export.js").FileOf>} */
const FILES = {
  matrix: renderMatrixFile,
  head_view: renderHeadFile,
  model_view: renderGridFile,
  layer_map: renderMapFile,
};

/**
 * The arguments from `views/page.py`, including functions that replace browser APIs.
 *
 * @typedef {object} RenderOptions
 * @property {string} component
 * @property {"png" | "svg"} kind format of the file
 * @property {import("./core/theme.js").ThemeColors} paints
 * @property {import("./core/text.js").Measure} measure
 * @property {(width: number, height: number, pixels: string) => string} encodeImage returns the data URL of an image
 * from its base64-encoded RGBA pixels
 */

/**
 * Returns a view as JSON with its SVG and the pixel ratio for a PNG. The payloads are base64-encoded.
 *
 * @param {string[]} payloads
 * @param {RenderOptions} options
 */
export function renderFile(payloads, { component, kind, paints, measure, encodeImage }) {
  const style = { theme: createTheme(paints), measure: memoizeMeasure(measure) };
  const pictures = payloads.map((payload) => FILES[component](Uint8Array.fromBase64(payload), style, kind));
  const picture = stackPictures(pictures);
  const encodeRgba = (/** @type {import("./core/pen.js").Pixels} */ { width, height, rgba }) => {
    return encodeImage(width, height, new Uint8Array(rgba.buffer).toBase64());
  };
  // A PNG cannot be enlarged without loss, so details smaller than its pixels are omitted.
  const resolution = kind === "png" ? picture.ratio : Number.POSITIVE_INFINITY;
  return JSON.stringify({ svg: renderSvg(picture, encodeRgba, resolution), ratio: picture.ratio });
}

/** Returns a picture in which several pictures are stacked. @param {FilePicture[]} pictures @returns {FilePicture} */
function stackPictures(pictures) {
  const tops = pictures.map((_, i) => pictures.slice(0, i).reduce((sum, picture) => sum + picture.height, 0));
  const [first] = pictures;
  if (pictures.length === 1) return first;
  return {
    ...first,
    width: Math.max(...pictures.map((picture) => picture.width)),
    height: pictures.reduce((sum, picture) => sum + picture.height, 0),
    ratio: Math.min(...pictures.map((picture) => picture.ratio)),
    paint: (pen) => {
      pictures.forEach((picture, i) => {
        pen.transform(0, tops[i], 0, () => picture.paint(pen));
      });
    },
  };
}
