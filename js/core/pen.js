/**
 * A drawing interface with two implementations, for canvas and SVG, so that one function paints a picture for the screen
 * and for files. Lengths are CSS pixels.
 *
 * @typedef {CanvasPen | SvgPen} Pen
 */

import { rasterised } from "./discs.js";
import { contextOf } from "./dom.js";
import { fontOf } from "./theme.js";

/**
 * The style of a shape: filled, outlined, or both.
 *
 * @typedef {object} Look
 * @property {string} [fill]
 * @property {string} [stroke]
 * @property {number} [line] width of the stroke, default 1
 * @property {number} [radius] of corners
 * @property {number} [alpha] default 1
 */

/**
 * The style and alignment of a text.
 *
 * @typedef {object} Lettering
 * @property {number} size
 * @property {string} fill
 * @property {number} [weight] default 400
 * @property {"start" | "middle" | "end"} [anchor] horizontal alignment at x
 * @property {boolean} [middle] whether y is the vertical center, and not the baseline
 * @property {number} [width] width to fit the text to, if the font is missing where a file is opened
 */

/**
 * Pixels in row-major order, as the 32-bit words of an ImageData.
 *
 * @typedef {{width: number, height: number, words: Uint32Array}} Pixels
 */

/**
 * The commands of a path.
 *
 * @typedef {object} Path
 * @property {(x: number, y: number) => void} moveTo
 * @property {(x: number, y: number) => void} lineTo
 * @property {(a: number, b: number, c: number, d: number, x: number, y: number) => void} bezierCurveTo
 */

/** @typedef {{x: number, y: number, width: number, height: number}} Area */
/** @typedef {import("./discs.js").Discs} Discs */

const HATCHING = 5; // from line to line
const OUTLINED = 400; // maximum number of discs drawn as paths; more are drawn as pixels
/** @type {Record<string, CanvasTextAlign>} */
const ALIGNMENTS = { start: "left", middle: "center", end: "right" };

/** Draws onto a canvas whose context is scaled to CSS pixels. */
export class CanvasPen {
  /**
   * @param {CanvasRenderingContext2D} context
   * @param {string} font its family
   * @param {number} ratio pixels of the canvas in a CSS pixel
   */
  constructor(context, font, ratio) {
    this.context = context;
    this.font = font;
    /** Device pixels per CSS pixel; nothing finer is visible. */
    this.resolution = ratio;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {Look} look */
  rectangle(x, y, width, height, { fill, stroke, line = 1, radius = 0, alpha = 1 }) {
    const { context } = this;
    context.globalAlpha = alpha;
    if (radius) {
      context.beginPath();
      context.roundRect(x, y, width, height, radius);
    }
    if (fill) {
      context.fillStyle = fill;
      if (radius) context.fill();
      else context.fillRect(x, y, width, height);
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = line;
      if (radius) context.stroke();
      else context.strokeRect(x, y, width, height);
    }
    context.globalAlpha = 1;
  }

  /** @param {(path: Path) => void} trace @param {Look} look */
  path(trace, { stroke = "", line = 1, alpha = 1 }) {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = line;
    context.globalAlpha = alpha;
    context.beginPath();
    trace(context);
    context.stroke();
    context.globalAlpha = 1;
  }

  /**
   * Draws discs on an empty area; later ones cover earlier ones.
   *
   * @param {Discs[]} groups @param {Area} area @param {string} ground its color
   */
  discs(groups, area, ground) {
    const count = groups.reduce((sum, { at }) => sum + at.length / 2, 0);
    if (count > OUTLINED) this.image(rasterised(groups, area, this.resolution, ground), area);
    else for (const group of groups) this.outlined(group);
  }

  /** @param {Discs} discs */
  outlined({ at, radius, fill, alpha }) {
    const { context } = this;
    context.fillStyle = fill;
    context.globalAlpha = alpha;
    for (let i = 0; i < at.length; i += 2) {
      context.beginPath();
      context.arc(at[i], at[i + 1], radius, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** @param {string} text @param {number} x @param {number} y @param {Lettering} lettering */
  text(text, x, y, { size, fill, weight = 400, anchor = "start", middle = false }) {
    const { context } = this;
    context.font = fontOf(this.font, size, weight);
    context.fillStyle = fill;
    context.textAlign = ALIGNMENTS[anchor];
    context.textBaseline = middle ? "middle" : "alphabetic";
    context.fillText(text, x, y);
  }

  /** "No value": diagonal lines on a neutral background, unlike the color of any number.
   *
   * @param {Area} area @param {[string, string]} colors of ground and lines */
  hatched(area, [ground, line]) {
    const { x, y, width, height } = area;
    this.clipped(area, () => {
      this.rectangle(x, y, width, height, { fill: ground });
      this.path(
        (path) => {
          for (let start = -height; start < width; start += HATCHING) {
            path.moveTo(x + start, y + height);
            path.lineTo(x + start + height, y);
          }
        },
        { stroke: line },
      );
    });
  }

  /**
   * Draws an image stretched over an area aligned to device pixels, without interpolation.
   *
   * @param {Pixels} pixels @param {Area} area @param {string} [_title]
   */
  image(pixels, area, _title) {
    const { context } = this;
    const { a: ratio, e, f } = context.getTransform();
    const canvas = canvasOf(pixels);
    const [x, y] = [Math.round(area.x * ratio + e), Math.round(area.y * ratio + f)];
    context.save();
    context.resetTransform();
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, x, y, Math.round(area.width * ratio), Math.round(area.height * ratio));
    context.restore();
  }

  /** Paints clipped to an area. @param {Area} area @param {() => void} paint */
  clipped({ x, y, width, height }, paint) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    paint();
    context.restore();
  }

  /** Paints with the origin elsewhere, and turned. @param {number} x @param {number} y @param {number} degrees
   * @param {() => void} paint */
  moved(x, y, degrees, paint) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (degrees) context.rotate((degrees * Math.PI) / 180);
    paint();
    context.restore();
  }

  /** Paints adjacent shapes without seams between them. @param {() => void} paint */
  seamless(paint) {
    paint();
  }
}

/** Writes SVG as text. All user text is escaped by `escaped`. */
export class SvgPen {
  /**
   * @param {number} width
   * @param {number} height
   * @param {string} title
   * @param {string} font its family
   * @param {(pixels: Pixels) => string} encoded returns the data URL of an image
   * @param {number} resolution device pixels per CSS pixel that matter; Infinity if the file may be enlarged
   */
  constructor(width, height, title, font, encoded = imageAddress, resolution = Number.POSITIVE_INFINITY) {
    this.resolution = resolution;
    this.encoded = encoded;
    this.clips = 0;
    this.hatching = false;
    const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": font };
    /** @type {string[]} */
    this.written = [opening("svg", { xmlns: "http://www.w3.org/2000/svg", ...size }), titled(title)];
  }

  /** The SVG document. */
  get drawing() {
    return `${this.written.join("\n")}\n</svg>\n`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {Look} look */
  rectangle(x, y, width, height, { fill = "none", stroke, line = 1, radius, alpha = 1 }) {
    const outline = stroke ? { stroke, "stroke-width": rounded(line) } : {};
    const faint = faded(stroke ? "opacity" : "fill-opacity", alpha);
    this.add("rect", { ...area({ x, y, width, height }), rx: radius, fill, ...outline, ...faint });
  }

  /** @param {(path: Path) => void} trace @param {Look} look */
  path(trace, { stroke, line = 1, alpha = 1 }) {
    /** @type {string[]} */
    const d = [];
    /** @param {string} letter @returns {(...points: number[]) => void} */
    const to =
      (letter) =>
      (...points) => {
        d.push(letter + points.map(rounded).join(" "));
      };
    trace({ moveTo: to("M"), lineTo: to("L"), bezierCurveTo: to("C") });
    // Not opacity: many programs create a layer of the size of the picture for each path with opacity.
    const faint = faded("stroke-opacity", alpha);
    this.add("path", { d: d.join(""), fill: "none", stroke, "stroke-width": rounded(line), ...faint });
  }

  /** Draws discs as zero-length lines with round caps, one path per style. @param {Discs[]} groups */
  discs(groups) {
    for (const { at, radius, fill, alpha } of groups) {
      if (!at.length) continue;
      /** @type {string[]} */
      const d = [];
      for (let i = 0; i < at.length; i += 2) d.push(`M${rounded(at[i])} ${rounded(at[i + 1])}h0`);
      const ends = { "stroke-width": rounded(2 * radius), "stroke-linecap": "round" };
      const look = { fill: "none", stroke: fill, ...ends, ...faded("stroke-opacity", alpha) };
      this.add("path", { d: d.join(""), ...look });
    }
  }

  /** @param {string} text @param {number} x @param {number} y @param {Lettering} lettering */
  text(text, x, y, { size, fill, weight = 400, anchor = "start", middle = false, width }) {
    // Not dominant-baseline, which many programs ignore: half the height of letters is about 0.35 of the font size.
    const base = rounded(y + (middle ? 0.35 * size : 0));
    const held = width ? { textLength: Math.ceil(width), lengthAdjust: "spacingAndGlyphs" } : {};
    const style = { "font-size": size, "font-weight": weight === 400 ? undefined : weight, fill, ...held };
    const attributes = {
      x: rounded(x),
      y: base,
      "text-anchor": anchor === "start" ? undefined : anchor,
      ...style,
    };
    this.add("text", attributes, escaped(text));
  }

  /** @param {Area} place @param {[string, string]} colors */
  hatched(place, [ground, line]) {
    if (!this.hatching) {
      const size = { width: HATCHING, height: HATCHING };
      const pattern = {
        id: "no-value",
        ...size,
        patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)",
      };
      const lines =
        opening("rect", { ...size, fill: ground }, "/") +
        opening("rect", { width: 1, height: HATCHING, fill: line }, "/");
      this.add("pattern", pattern, lines);
      this.hatching = true;
    }
    this.add("rect", { ...area(place), fill: "url(#no-value)" }, titled("no value"));
  }

  /** @param {Pixels} pixels @param {Area} place @param {string} [title] */
  image(pixels, place, title) {
    const attributes = { ...area(place), href: this.encoded(pixels), preserveAspectRatio: "none" };
    this.add("image", { ...attributes, style: "image-rendering: pixelated" }, title && titled(title));
  }

  /** @param {Area} place @param {() => void} paint */
  clipped(place, paint) {
    const id = `clip-${++this.clips}`;
    this.add("clipPath", { id }, opening("rect", area(place), "/"));
    this.group({ "clip-path": `url(#${id})` }, paint);
  }

  /** @param {number} x @param {number} y @param {number} degrees @param {() => void} paint */
  moved(x, y, degrees, paint) {
    const turn = degrees ? ` rotate(${degrees})` : "";
    this.group({ transform: `translate(${rounded(x)} ${rounded(y)})${turn}` }, paint);
  }

  /** @param {() => void} paint */
  seamless(paint) {
    this.group({ "shape-rendering": "crispEdges" }, paint);
  }

  /** @param {Attributes} attributes @param {() => void} paint */
  group(attributes, paint) {
    this.written.push(opening("g", attributes));
    paint();
    this.written.push("</g>");
  }

  /** @param {string} name @param {Attributes} attributes @param {string} [content] markup */
  add(name, attributes, content) {
    const whole = content
      ? `${opening(name, attributes)}${content}</${name}>`
      : opening(name, attributes, "/");
    this.written.push(whole);
  }
}

/** @typedef {Record<string, string | number | undefined>} Attributes undefined ones are omitted */

/** @param {string} name @param {Attributes} attributes @param {"" | "/"} end */
function opening(name, attributes, end = "") {
  const written = Object.entries(attributes).filter(([, value]) => value !== undefined);
  return `<${[name, ...written.map(([key, value]) => `${key}="${escaped(String(value))}"`)].join(" ")}${end}>`;
}

/** @param {string} text */
function titled(text) {
  return `<title>${escaped(text)}</title>`;
}

/** @param {Area} area */
function area({ x, y, width, height }) {
  return { x: rounded(x), y: rounded(y), width: rounded(width), height: rounded(height) };
}

/** @param {string} name @param {number} alpha */
function faded(name, alpha) {
  return { [name]: alpha < 1 ? rounded(alpha) : undefined };
}

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/**
 * Escapes a text for XML, and removes characters that are invalid in XML.
 *
 * @param {string} text
 */
export function escaped(text) {
  return text
    .replace(/[&<>"]/g, (sign) => ENTITIES[sign])
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
}

/** @param {number} length */
function rounded(length) {
  return Math.round(length * 100) / 100;
}

/** @param {Pixels} pixels */
function canvasOf({ width, height, words }) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  new Uint32Array(image.data.buffer).set(words);
  contextOf(canvas).putImageData(image, 0, 0);
  return canvas;
}

/** @param {Pixels} pixels */
function imageAddress(pixels) {
  return canvasOf(pixels).toDataURL();
}
