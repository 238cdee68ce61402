// Export of pictures as files.

import { contextOf, element } from "./dom.js";
import { LEGEND_HEIGHT, LEGEND_WIDTH, paintLegend } from "./legend.js";
import { CanvasPen, SvgPen } from "./pen.js";
import { wrapped } from "./text.js";

/**
 * A picture for a file: its size, and a function that paints it.
 *
 * @typedef {object} Saved
 * @property {number} width
 * @property {number} height
 * @property {number} ratio PNG pixels per CSS pixel
 * @property {string} title
 * @property {string} fileName without extension
 * @property {import("./theme.js").Theme} theme
 * @property {(pen: import("./pen.js").Pen) => void} paint
 */

/**
 * Creates the picture of a payload for a file without a screen.
 *
 * @typedef {(
 *   bytes: Uint8Array,
 *   look: {theme: import("./theme.js").Theme, measure: import("./text.js").Measure},
 *   kind: "png" | "svg",
 * ) => Saved} FileOf
 */

/** PNG pixels per CSS pixel, unless the PNG would be too large. */
export const PNG_RATIO = 2;
/** Maximum number of PNG pixels, which browsers encode quickly. */
export const PNG_PIXELS = 36e6;

const MARGIN = 20;
const CAPTION_LINE = 20;

/**
 * A picture with its caption above and its legend below.
 *
 * @param {object} what
 * @param {import("./theme.js").Theme} what.theme
 * @param {import("./scale.js").Colors} what.colors
 * @param {import("./scale.js").Legend} what.legend
 * @param {import("./text.js").Measure} what.measure
 * @param {string} what.caption
 * @param {number} [what.mostLines] of the caption
 * @param {string} what.fileName
 * @param {number} what.ratio
 * @param {number} what.width of the picture itself
 * @param {number} what.height
 * @param {(pen: import("./pen.js").Pen) => void} what.paint paints the picture itself
 * @returns {Saved}
 */
export function captioned({ colors, legend, ...rest }) {
  const { theme } = rest;
  /** @type {Foot} */
  const foot = {
    width: LEGEND_WIDTH,
    height: LEGEND_HEIGHT,
    paint: (pen, x, y) => paintLegend(pen, theme, colors, legend, x, y),
  };
  return framed({ ...rest, foot });
}

/**
 * The footer of a picture; y is the baseline of its first line.
 *
 * @typedef {object} Foot
 * @property {number} width
 * @property {number} height
 * @property {(pen: import("./pen.js").Pen, x: number, y: number) => void} paint
 */

/**
 * A picture with its caption above and any footer below.
 *
 * @param {Omit<Parameters<typeof captioned>[0], "colors" | "legend"> & {foot: Foot}} what
 * @returns {Saved}
 */
export function framed({ theme, foot, measure, caption, mostLines, paint, ...rest }) {
  const width = Math.max(rest.width, foot.width) + 2 * MARGIN;
  const wanted = wrapped(caption, width - 2 * MARGIN, 14, measure);
  const lines = wanted.slice(0, mostLines);
  if (lines.length < wanted.length) lines[lines.length - 1] += " …";
  const top = MARGIN + lines.length * CAPTION_LINE + 14;
  const style = { size: 14, weight: 600, fill: theme.ink };
  return {
    ...rest,
    theme,
    title: caption,
    width,
    height: top + rest.height + foot.height + MARGIN,
    paint: (pen) => {
      lines.forEach((line, i) => {
        pen.text(line, MARGIN, MARGIN + 14 + i * CAPTION_LINE, { ...style, width: measure(line, 14, 600) });
      });
      pen.moved(MARGIN, top, 0, () => paint(pen));
      foot.paint(pen, MARGIN, top + rest.height + 18);
    },
  };
}

/**
 * @param {Saved} saved
 * @param {"png" | "svg"} kind
 */
export async function save(saved, kind) {
  const blob = kind === "svg" ? new Blob([svgOf(saved)], { type: "image/svg+xml" }) : await pngOf(saved);
  if (blob) offer(blob, `${saved.fileName}.${kind}`);
}

/**
 * @param {Saved} saved
 * @param {(pixels: import("./pen.js").Pixels) => string} [encoded] see `SvgPen`
 * @param {number} [resolution] see `SvgPen`
 */
export function svgOf({ width, height, title, theme, paint }, encoded, resolution) {
  const pen = new SvgPen(width, height, title, theme.font, encoded, resolution);
  pen.rectangle(0, 0, width, height, { fill: theme.background });
  paint(pen);
  return pen.drawing;
}

/**
 * @param {Saved} saved
 * @returns {Promise<Blob | null>}
 */
function pngOf({ width, height, ratio, theme, paint }) {
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = contextOf(canvas);
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
export function offer(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  // Delayed, because the browser reads the URL after this function has returned.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
