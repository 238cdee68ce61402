/**
 * A drawing interface with implementations for canvas and SVG, so that the same function paints a picture on the screen
 * and in a file. Lengths are CSS pixels.
 *
 * @typedef {CanvasPen | SvgPen} Pen
 */

import { rasterizeDiscs } from "./discs.js";
import { getContext } from "./dom.js";
import { formatFont } from "./theme.js";

/**
 * The style of a shape: filled, outlined, or both.
 *
 * @typedef {object} ShapeStyle
 * @property {string} [fill]
 * @property {string} [stroke]
 * @property {number} [lineWidth] width of the stroke, default 1
 * @property {number} [radius] corner radius
 * @property {number} [alpha] default 1
 */

/**
 * The style and alignment of a text.
 *
 * @typedef {object} TextStyle
 * @property {number} size
 * @property {string} fill
 * @property {number} [weight] default 400
 * @property {"start" | "middle" | "end"} [anchor] horizontal alignment at x
 * @property {boolean} [isCentered] whether y is the vertical center instead of the baseline
 * @property {number} [width] width to which a program scales the text if it lacks the font
 */

/**
 * Pixels in row-major order, as the 32-bit words of an ImageData.
 *
 * @typedef {{width: number, height: number, rgba: Uint32Array}} Pixels
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

const HATCH_DISTANCE = 5; // distance between hatching lines
const MAX_PATH_DISCS = 400; // maximum number of discs drawn as paths; more are drawn as pixels
/** @type {Record<string, CanvasTextAlign>} */
const ALIGNMENTS = { start: "left", middle: "center", end: "right" };

/**
 * The part of a 2-D context that `CanvasPen` uses.
 *
 * @typedef {Pick<CanvasRenderingContext2D, "arc" | "beginPath" | "bezierCurveTo" | "clip" | "drawImage" | "fill" |
 *   "fillRect" | "fillStyle" | "fillText" | "font" | "getTransform" | "globalAlpha" | "imageSmoothingEnabled" | "lineTo" |
 *   "lineWidth" | "moveTo" | "putImageData" | "rect" | "resetTransform" | "restore" | "rotate" | "roundRect" | "save" | "stroke" |
 *   "strokeRect" | "strokeStyle" | "textAlign" | "textBaseline" | "translate">} DrawingContext
 */

/** Draws onto a canvas whose context is scaled to CSS pixels. */
export class CanvasPen {
  /**
   * @param {DrawingContext} context
   * @param {string} font font family
   * @param {number} ratio pixels of the canvas per CSS pixel
   */
  constructor(context, font, ratio) {
    this.context = context;
    this.font = font;
    /** Device pixels per CSS pixel. Details that are smaller than a device pixel can be omitted. */
    this.resolution = ratio;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {ShapeStyle} look */
  rectangle(x, y, width, height, { fill, stroke, lineWidth = 1, radius = 0, alpha = 1 }) {
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
      context.lineWidth = lineWidth;
      if (radius) context.stroke();
      else context.strokeRect(x, y, width, height);
    }
    context.globalAlpha = 1;
  }

  /** @param {(path: Path) => void} trace @param {ShapeStyle} look */
  path(trace, { stroke = "", lineWidth = 1, alpha = 1 }) {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = lineWidth;
    context.globalAlpha = alpha;
    context.beginPath();
    trace(context);
    context.stroke();
    context.globalAlpha = 1;
  }

  /**
   * Draws discs on an empty area. Later discs cover earlier discs.
   *
   * @param {Discs[]} groups @param {Area} area @param {string} background color of the area
   */
  discs(groups, area, background) {
    const count = groups.reduce((sum, { positions }) => sum + positions.length / 2, 0);
    if (count > MAX_PATH_DISCS) this.image(rasterizeDiscs(groups, area, this.resolution, background), area);
    else for (const group of groups) this.paintDiscs(group);
  }

  /** @param {Discs} discs */
  paintDiscs({ positions, radius, fill, alpha }) {
    const { context } = this;
    context.fillStyle = fill;
    context.globalAlpha = alpha;
    for (let i = 0; i < positions.length; i += 2) {
      context.beginPath();
      context.arc(positions[i], positions[i + 1], radius, 0, 2 * Math.PI);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} lettering */
  text(text, x, y, { size, fill, weight = 400, anchor = "start", isCentered = false }) {
    const { context } = this;
    context.font = formatFont(this.font, size, weight);
    context.fillStyle = fill;
    context.textAlign = ALIGNMENTS[anchor];
    context.textBaseline = isCentered ? "middle" : "alphabetic";
    context.fillText(text, x, y);
  }

  /**
   * Marks a missing value with diagonal lines on a neutral background, which is not a color of the scale.
   *
   * @param {Area} area @param {[string, string]} colors of background and lines
   */
  hatch(area, [background, line]) {
    const { x, y, width, height } = area;
    this.clip(area, () => {
      this.rectangle(x, y, width, height, { fill: background });
      this.path(
        (path) => {
          for (let start = -height; start < width; start += HATCH_DISTANCE) {
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
    const canvas = createImageCanvas(pixels);
    const [x, y] = [Math.round(area.x * ratio + e), Math.round(area.y * ratio + f)];
    context.save();
    context.resetTransform();
    context.imageSmoothingEnabled = false;
    context.drawImage(canvas, x, y, Math.round(area.width * ratio), Math.round(area.height * ratio));
    context.restore();
  }

  /**
   * Replaces the pixels of an area aligned to device pixels, ignoring any clipping.
   *
   * @param {Pixels} pixels @param {Area} area
   */
  replacePixels({ width, height, rgba }, { x, y }) {
    const { context } = this;
    const { a: ratio, e, f } = context.getTransform();
    const bytes = new Uint8ClampedArray(/** @type {ArrayBuffer} */ (rgba.buffer));
    const image = new ImageData(bytes, width, height); // shares its memory with `rgba`
    context.putImageData(image, Math.round(x * ratio + e), Math.round(y * ratio + f));
  }

  /** Calls `paint` with drawing clipped to an area. @param {Area} area @param {() => void} paint */
  clip({ x, y, width, height }, paint) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    paint();
    context.restore();
  }

  /**
   * Calls `paint` with a translated origin and rotated axes.
   *
   * @param {number} x @param {number} y @param {number} degrees @param {() => void} paint
   */
  transform(x, y, degrees, paint) {
    const { context } = this;
    context.save();
    context.translate(x, y);
    if (degrees) context.rotate((degrees * Math.PI) / 180);
    paint();
    context.restore();
  }

  /** Calls `paint`, and draws its adjacent shapes without seams between them. @param {() => void} paint */
  paintSeamless(paint) {
    paint();
  }
}

/** Writes SVG as text. All user text is escaped by `escapeXml`. */
export class SvgPen {
  /**
   * @param {number} width
   * @param {number} height
   * @param {string} title
   * @param {string} font font family
   * @param {(pixels: Pixels) => string} encoded function that returns the data URL of an image
   * @param {number} resolution device pixels per CSS pixel; Infinity if the file may be enlarged
   */
  constructor(width, height, title, font, encoded = toDataUrl, resolution = Number.POSITIVE_INFINITY) {
    this.resolution = resolution;
    this.encodeImage = encoded;
    this.clipCount = 0;
    this.hasHatching = false;
    const size = { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": font };
    /** @type {string[]} */
    this.markup = [openTag("svg", { xmlns: "http://www.w3.org/2000/svg", ...size }), createTitle(title)];
  }

  /** The SVG document. */
  get svg() {
    return `${this.markup.join("\n")}\n</svg>\n`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {ShapeStyle} look */
  rectangle(x, y, width, height, { fill = "none", stroke, lineWidth = 1, radius, alpha = 1 }) {
    const outline = stroke ? { stroke, "stroke-width": round(lineWidth) } : {};
    const faint = opacityAttribute(stroke ? "opacity" : "fill-opacity", alpha);
    this.add("rect", { ...areaAttributes({ x, y, width, height }), rx: radius, fill, ...outline, ...faint });
  }

  /** @param {(path: Path) => void} trace @param {ShapeStyle} look */
  path(trace, { stroke, lineWidth = 1, alpha = 1 }) {
    /** @type {string[]} */
    const d = [];
    /** @param {string} letter @returns {(...points: number[]) => void} */
    const to =
      (letter) =>
      (...points) => {
        d.push(letter + points.map(round).join(" "));
      };
    trace({ moveTo: to("M"), lineTo: to("L"), bezierCurveTo: to("C") });
    // Use `stroke-opacity`, because many SVG renderers allocate a layer of the size of the picture for `opacity`.
    const faint = opacityAttribute("stroke-opacity", alpha);
    this.add("path", { d: d.join(""), fill: "none", stroke, "stroke-width": round(lineWidth), ...faint });
  }

  /** Draws discs as zero-length lines with round caps, one path per style. @param {Discs[]} groups */
  discs(groups) {
    for (const { positions, radius, fill, alpha } of groups) {
      if (!positions.length) continue;
      /** @type {string[]} */
      const d = [];
      for (let i = 0; i < positions.length; i += 2)
        d.push(`M${round(positions[i])} ${round(positions[i + 1])}h0`);
      const ends = { "stroke-width": round(2 * radius), "stroke-linecap": "round" };
      const look = { fill: "none", stroke: fill, ...ends, ...opacityAttribute("stroke-opacity", alpha) };
      this.add("path", { d: d.join(""), ...look });
    }
  }

  /** @param {string} text @param {number} x @param {number} y @param {TextStyle} lettering */
  text(text, x, y, { size, fill, weight = 400, anchor = "start", isCentered = false, width }) {
    // Compute the baseline, because many SVG renderers ignore dominant-baseline.
    // Half the height of letters is about 0.35 of the font size.
    const baseline = round(y + (isCentered ? 0.35 * size : 0));
    const fittedWidth = width ? { textLength: Math.ceil(width), lengthAdjust: "spacingAndGlyphs" } : {};
    const style = {
      "font-size": size,
      "font-weight": weight === 400 ? undefined : weight,
      fill,
      ...fittedWidth,
    };
    const attributes = {
      x: round(x),
      y: baseline,
      "text-anchor": anchor === "start" ? undefined : anchor,
      ...style,
    };
    this.add("text", attributes, escapeXml(text));
  }

  /** @param {Area} area @param {[string, string]} colors */
  hatch(area, [background, line]) {
    if (!this.hasHatching) {
      const size = { width: HATCH_DISTANCE, height: HATCH_DISTANCE };
      const pattern = {
        id: "no-value",
        ...size,
        patternUnits: "userSpaceOnUse",
        patternTransform: "rotate(45)",
      };
      const lines =
        openTag("rect", { ...size, fill: background }, "/") +
        openTag("rect", { width: 1, height: HATCH_DISTANCE, fill: line }, "/");
      this.add("pattern", pattern, lines);
      this.hasHatching = true;
    }
    this.add("rect", { ...areaAttributes(area), fill: "url(#no-value)" }, createTitle("no value"));
  }

  /** @param {Pixels} pixels @param {Area} area @param {string} [title] */
  image(pixels, area, title) {
    const attributes = {
      ...areaAttributes(area),
      href: this.encodeImage(pixels),
      preserveAspectRatio: "none",
    };
    this.add("image", { ...attributes, style: "image-rendering: pixelated" }, title && createTitle(title));
  }

  /** @param {Area} area @param {() => void} paint */
  clip(area, paint) {
    const id = `clip-${++this.clipCount}`;
    this.add("clipPath", { id }, openTag("rect", areaAttributes(area), "/"));
    this.group({ "clip-path": `url(#${id})` }, paint);
  }

  /** @param {number} x @param {number} y @param {number} degrees @param {() => void} paint */
  transform(x, y, degrees, paint) {
    const turn = degrees ? ` rotate(${degrees})` : "";
    this.group({ transform: `translate(${round(x)} ${round(y)})${turn}` }, paint);
  }

  /** @param {() => void} paint */
  paintSeamless(paint) {
    this.group({ "shape-rendering": "crispEdges" }, paint);
  }

  /** @param {Attributes} attributes @param {() => void} paint */
  group(attributes, paint) {
    this.markup.push(openTag("g", attributes));
    paint();
    this.markup.push("</g>");
  }

  /** @param {string} name @param {Attributes} attributes @param {string} [content] markup */
  add(name, attributes, content) {
    const tag = content ? `${openTag(name, attributes)}${content}</${name}>` : openTag(name, attributes, "/");
    this.markup.push(tag);
  }
}

/** @typedef {Record<string, string | number | undefined>} Attributes undefined attributes are omitted */

/** @param {string} name @param {Attributes} attributes @param {"" | "/"} end */
function openTag(name, attributes, end = "") {
  const written = Object.entries(attributes).filter(([, value]) => value !== undefined);
  return `<${[name, ...written.map(([key, value]) => `${key}="${escapeXml(String(value))}"`)].join(" ")}${end}>`;
}

/** @param {string} text */
function createTitle(text) {
  return `<title>${escapeXml(text)}</title>`;
}

/** @param {Area} area */
function areaAttributes({ x, y, width, height }) {
  return { x: round(x), y: round(y), width: round(width), height: round(height) };
}

/** @param {string} name @param {number} alpha */
function opacityAttribute(name, alpha) {
  return { [name]: alpha < 1 ? round(alpha) : undefined };
}

/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/**
 * Escapes a text for XML, and removes characters that are invalid in XML.
 *
 * @param {string} text
 */
export function escapeXml(text) {
  return text
    .replace(/[&<>"]/g, (sign) => ENTITIES[sign])
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd");
}

/** @param {number} length */
function round(length) {
  return Math.round(length * 100) / 100;
}

/** @param {Pixels} pixels */
function createImageCanvas({ width, height, rgba }) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  new Uint32Array(image.data.buffer).set(rgba);
  getContext(canvas).putImageData(image, 0, 0);
  return canvas;
}

/** @param {Pixels} pixels */
function toDataUrl(pixels) {
  return createImageCanvas(pixels).toDataURL();
}
