// Export of pictures as SVG and PNG files.

import { element, getContext } from "./dom.js";
import { LEGEND_HEIGHT, LEGEND_WIDTH, paintLegend } from "./legend.js";
import { CanvasPen, SvgPen } from "./pen.js";
import { wrapText } from "./text.js";

/**
 * A picture for a file: its size, and a function that paints it.
 *
 * @typedef {object} FilePicture
 * @property {number} width
 * @property {number} height
 * @property {number} ratio PNG pixels per CSS pixel
 * @property {string} title
 * @property {string} fileName name of the file, without extension
 * @property {import("./theme.js").Theme} theme
 * @property {(pen: import("./pen.js").Pen) => void} paint
 */

/**
 * Creates the picture for a PNG or SVG file from a payload, without a view on a page.
 *
 * @typedef {(
 *   bytes: Uint8Array,
 *   look: {theme: import("./theme.js").Theme, measure: import("./text.js").Measure},
 *   kind: "png" | "svg",
 * ) => FilePicture} FileOf
 */

/** PNG pixels per CSS pixel, unless the PNG would be too large. */
export const PNG_RATIO = 2;
/** Maximum number of pixels of a PNG, so that browsers encode it quickly. */
export const PNG_PIXELS = 36e6;

const MARGIN = 20;
const CAPTION_LINE = 20;

/**
 * Returns a picture with its caption above and its legend below.
 *
 * @param {object} picture
 * @param {import("./theme.js").Theme} picture.theme
 * @param {import("./scale.js").Colors} picture.colors
 * @param {import("./scale.js").Legend} picture.legend
 * @param {import("./text.js").Measure} picture.measure
 * @param {string} picture.caption
 * @param {number} [picture.maxLines] maximum number of lines of the caption
 * @param {string} picture.fileName
 * @param {number} picture.ratio
 * @param {number} picture.width width without the margins
 * @param {number} picture.height
 * @param {(pen: import("./pen.js").Pen) => void} picture.paint paints the picture without caption and legend
 * @returns {FilePicture}
 */
export function addLegend({ colors, legend, ...rest }) {
  const { theme } = rest;
  /** @type {Footer} */
  const footer = {
    width: LEGEND_WIDTH,
    height: LEGEND_HEIGHT,
    paint: (pen, x, y) => paintLegend(pen, theme, colors, legend, x, y),
  };
  return addCaption({ ...rest, footer });
}

/**
 * The footer of a picture; y is the baseline of its first line.
 *
 * @typedef {object} Footer
 * @property {number} width
 * @property {number} height
 * @property {(pen: import("./pen.js").Pen, x: number, y: number) => void} paint
 */

/**
 * Returns a picture with its caption above and any footer below.
 *
 * @param {Omit<Parameters<typeof addLegend>[0], "colors" | "legend"> & {footer: Footer}} picture
 * @returns {FilePicture}
 */
export function addCaption({ theme, footer, measure, caption, maxLines, paint, ...rest }) {
  const width = Math.max(rest.width, footer.width) + 2 * MARGIN;
  const allLines = wrapText(caption, width - 2 * MARGIN, 14, measure);
  const lines = allLines.slice(0, maxLines);
  if (lines.length < allLines.length) lines[lines.length - 1] += " …";
  const top = MARGIN + lines.length * CAPTION_LINE + 14;
  const style = { size: 14, weight: 600, fill: theme.ink };
  return {
    ...rest,
    theme,
    title: caption,
    width,
    height: top + rest.height + footer.height + MARGIN,
    paint: (pen) => {
      lines.forEach((line, i) => {
        pen.text(line, MARGIN, MARGIN + 14 + i * CAPTION_LINE, { ...style, width: measure(line, 14, 600) });
      });
      pen.transform(MARGIN, top, 0, () => paint(pen));
      footer.paint(pen, MARGIN, top + rest.height + 18);
    },
  };
}

/**
 * @param {FilePicture} picture
 * @param {"png" | "svg"} kind
 */
export async function save(picture, kind) {
  const blob =
    kind === "svg" ? new Blob([renderSvg(picture)], { type: "image/svg+xml" }) : await renderPng(picture);
  if (blob) download(blob, `${picture.fileName}.${kind}`);
}

/**
 * @param {FilePicture} picture
 * @param {(pixels: import("./pen.js").Pixels) => string} [encoded] see `SvgPen`
 * @param {number} [resolution] see `SvgPen`
 */
export function renderSvg({ width, height, title, theme, paint }, encoded, resolution) {
  const pen = new SvgPen(width, height, title, theme.font, encoded, resolution);
  pen.rectangle(0, 0, width, height, { fill: theme.background });
  paint(pen);
  return pen.svg;
}

/**
 * @param {FilePicture} picture
 * @returns {Promise<Blob | null>}
 */
function renderPng({ width, height, ratio, theme, paint }) {
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = getContext(canvas);
  context.scale(ratio, ratio);
  const pen = new CanvasPen(context, theme.font, ratio);
  pen.rectangle(0, 0, width, height, { fill: theme.background });
  paint(pen);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/**
 * Downloads a file.
 *
 * @param {Blob} blob
 * @param {string} name
 */
export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  // The browser reads the URL after this function has returned, so it is revoked later.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
