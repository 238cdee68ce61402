// Painting, for the screen and for files. All lengths are CSS pixels.

import { formatNumber } from "../core/text.js";
import { computeRadius, projectPoint, projectPoints } from "./layout.js";
import { getPoints } from "./model.js";

/**
 * @typedef {import("../core/pen.js").Pen} Pen
 * @typedef {import("./layout.js").Panel} Panel
 * @typedef {import("./model.js").Coloring} Coloring
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Point} Point
 * @typedef {import("./model.js").Spot} Spot
 */

/**
 * @typedef {object} MapPicture
 * @property {MapModel} model
 * @property {import("../core/theme.js").Theme} theme
 * @property {import("../core/text.js").Measure} measure
 * @property {import("./layout.js").MapGeometry} geometry
 * @property {Coloring} colors
 * @property {import("./model.js").By} by
 * @property {number[] | null} highlighted highlighted marks; null for none
 * @property {ArrayLike<number> | null} animatedPoints positions of the marks during an animation
 */

const MAX_LABELS = 600; // maximum number of marks with names
const MAX_LABELS_SMALL = 30;
const MAX_HIGHLIGHTED_LABELS = 80; // maximum number of highlighted marks with names
const FONT_SIZE = 12;
const FADED_ALPHA = 0.13;
const MAX_SPARSE_MARKS = 400; // number of marks up to which overlaps are rare
const ROUNDS = 16;
const LABEL_BACKGROUND = { radius: 3, alpha: 0.8 }; // background of a name over marks

/**
 * Paints everything that does not depend on the pointer.
 *
 * @param {Pen} pen
 * @param {MapPicture} picture
 */
export function paintMap(pen, picture) {
  const { geometry, theme, model } = picture;
  const isSmall = geometry.panels.length > 1;
  for (const panel of geometry.panels) {
    const { x, y, width, height } = panel.area;
    if (isSmall) {
      const [layer] = panel.layers;
      pen.text(`Layer ${layer}`, x, y - 6, { size: FONT_SIZE, weight: 600, fill: theme.ink });
      const share = model.shares[layer];
      const right = { size: 11, fill: theme.muted, anchor: /** @type {const} */ ("end") };
      if (share !== null) pen.text(`${Math.round(100 * share)}%`, x + width, y - 6, right);
    }
    pen.clip(panel.area, () => paintPanel(pen, picture, panel, isSmall));
    pen.rectangle(x + 0.5, y + 0.5, width - 1, height - 1, { stroke: theme.line, radius: isSmall ? 4 : 8 });
  }
}

/** @param {Pen} pen @param {MapPicture} picture @param {Panel} panel @param {boolean} isSmall */
function paintPanel(pen, picture, { layers, area, transform }, isSmall) {
  const { model, theme, animatedPoints } = picture;
  const radius = computeRadius(model.count * layers.length, isSmall);
  const pointsByLayer = layers.map((layer) =>
    projectPoints(transform, animatedPoints ?? getPoints(model, layer)),
  );
  pen.discs(createDiscs(picture, pointsByLayer, layers, radius), area, theme.background);
  const zero = projectPoint(transform, 0, 0);
  const cross = { stroke: theme.line, alpha: 0.6 };
  pen.path((path) => {
    path.moveTo(area.x, zero.y);
    path.lineTo(area.x + area.width, zero.y);
    path.moveTo(zero.x, area.y);
    path.lineTo(zero.x, area.y + area.height);
  }, cross);
  const maxLabels = isSmall ? MAX_LABELS_SMALL : MAX_LABELS;
  if (layers.length === 1) paintNames(pen, picture, pointsByLayer[0], area, radius, model.count <= maxLabels);
  if (isSmall) return;
  const [first, second] = formatAxisNames(model);
  const style = { size: 11, fill: theme.muted };
  pen.text(first, area.x + area.width - 10, area.y + area.height - 10, { ...style, anchor: "end" });
  pen.text(second, area.x + 10, area.y + 18, style);
}

/** @param {MapModel} model */
function formatAxisNames({ explained }) {
  const shares = explained?.map((share) => ` · ${formatNumber(100 * share, 1)}% of the variance`) ?? ["", ""];
  return [`component 1${shares[0]} →`, `↑ component 2${shares[1]}`];
}

/**
 * The discs of all marks, with highlighted marks on top.
 *
 * They are ordered in rounds with some marks of each layer and color, so that no color covers all other colors.
 *
 * @param {MapPicture} picture
 * @param {Float32Array[]} pointsByLayer positions in pixels, for each layer
 * @param {number[]} layers
 * @param {number} radius
 * @returns {import("../core/discs.js").Discs[]}
 */
function createDiscs({ model, theme, colors, by, highlighted }, pointsByLayer, layers, radius) {
  const fills = [theme.muted, ...colors.entries.map(({ color }) => color)];
  const rounds = model.count * layers.length > MAX_SPARSE_MARKS ? ROUNDS : 1;
  const heaps = () => Array.from({ length: rounds * fills.length }, () => /** @type {number[]} */ ([]));
  const strong = highlighted && new Set(highlighted);
  const front = heaps();
  const back = strong ? heaps() : front;
  pointsByLayer.forEach((points, panelIndex) => {
    for (let i = 0; i < model.count; i++) {
      const entry = by === "layer" ? layers[panelIndex] : colors.colorOf[i];
      // Gray marks are below all colored marks.
      const heap = entry < 0 ? 0 : ((i + panelIndex) % rounds) * fills.length + entry + 1;
      (strong?.has(i) === false ? back : front)[heap].push(points[2 * i], points[2 * i + 1]);
    }
  });
  const alpha = model.count > MAX_SPARSE_MARKS ? 0.7 : 0.85;
  /** @param {number[][]} of @param {(fill: string, isOther: boolean) => object} look */
  const discs = (of, look) =>
    of.map((positions, heap) => {
      const entry = heap % fills.length;
      return { positions, radius, fill: fills[entry], alpha, ...look(fills[entry], entry === 0) };
    });
  if (!strong) return discs(front, (_, isOther) => ({ alpha: isOther ? 0.45 : alpha }));
  const emphasis = { radius: 1.5 * radius, alpha: 1 };
  return [
    ...discs(back, () => ({ alpha: FADED_ALPHA })),
    ...discs(front, (fill, isOther) => ({ ...emphasis, fill: isOther ? theme.ink : fill })),
  ].filter(({ positions }) => positions.length);
}

/**
 * Paints names next to their marks, as many as fit.
 *
 * @param {Pen} pen
 * @param {MapPicture} picture
 * @param {Float32Array} points
 * @param {import("../core/pen.js").Area} area
 * @param {number} radius
 * @param {boolean} canLabelAll whether all marks can have names, or only highlighted marks
 */
function paintNames(pen, { model, theme, measure, highlighted }, points, area, radius, canLabelAll) {
  const first = highlighted ?? [];
  const strong = new Set(first);
  const unhighlighted = canLabelAll ? Array.from({ length: model.count }, (_, i) => i) : [];
  // Start with the rightmost mark of a cluster, which has free space on its right.
  unhighlighted.sort((a, b) => points[2 * b] - points[2 * a]);
  const occupied = new OccupiedSpace(FONT_SIZE + 3);
  for (const i of [...first.slice(0, MAX_HIGHLIGHTED_LABELS), ...unhighlighted]) {
    const [middle, y] = [points[2 * i], points[2 * i + 1]];
    if (middle < area.x || middle > area.x + area.width || y < area.y || y > area.y + area.height) continue;
    const name = model.names[model.nameOf[i]].slice(0, 24);
    const [width, gap] = [measure(name, FONT_SIZE), radius + 3];
    const x = middle + gap + width > area.x + area.width ? middle - gap - width : middle + gap;
    const right = x + width;
    if (!occupied.isFree(x, right, y)) continue;
    occupied.occupy(x, right, y);
    const fill = !highlighted || strong.has(i) ? theme.ink : theme.muted;
    const background = { x: x - 2, y: y - 8, width: right - x + 4, height: 16 };
    if (!canLabelAll)
      pen.rectangle(background.x, background.y, background.width, background.height, {
        ...LABEL_BACKGROUND,
        fill: theme.background,
      });
    pen.text(name, x, y, { size: FONT_SIZE, fill, isCentered: true });
  }
}

/** The occupied intervals of each line of text. */
class OccupiedSpace {
  /** @param {number} height of a line */
  constructor(height) {
    this.height = height;
    /** @type {Map<number, [number, number][]>} */
    this.lines = new Map();
  }

  /** The lines that a text at a height overlaps. @param {number} y */
  getLines(y) {
    const line = y / this.height - 0.5;
    return [Math.floor(line), Math.ceil(line)];
  }

  /** @param {number} left @param {number} right @param {number} y */
  isFree(left, right, y) {
    return this.getLines(y).every((line) =>
      (this.lines.get(line) ?? []).every(([from, to]) => to < left || from > right),
    );
  }

  /** @param {number} left @param {number} right @param {number} y */
  occupy(left, right, y) {
    for (const line of this.getLines(y)) {
      const intervals = this.lines.get(line);
      if (intervals) intervals.push([left, right]);
      else this.lines.set(line, [[left, right]]);
    }
  }
}

/**
 * Paints the trajectory of a mark through the layers, with layer numbers.
 *
 * @param {Pen} pen
 * @param {MapPicture} picture
 * @param {Point} point
 * @param {boolean} strong
 */
export function paintTrajectory(pen, { model, theme, geometry }, { index, layer }, strong) {
  const [panel] = geometry.panels;
  if (!model.joined || geometry.panels.length > 1) return;
  const spots = Array.from({ length: model.layerCount }, (_, layerIndex) => {
    const points = getPoints(model, layerIndex);
    return projectPoint(panel.transform, points[2 * index], points[2 * index + 1]);
  });
  const color = strong ? theme.accent : theme.muted;
  pen.clip(panel.area, () => {
    /** @param {import("../core/pen.js").Path} path */
    const tracePath = (path) => {
      path.moveTo(spots[0].x, spots[0].y);
      for (const { x, y } of spots.slice(1)) path.lineTo(x, y);
    };
    pen.path(tracePath, { stroke: theme.background, lineWidth: 4, alpha: 0.8 });
    pen.path(tracePath, { stroke: color, lineWidth: 1.5 });
    const positions = spots.flatMap(({ x, y }) => [x, y]);
    pen.discs([{ positions, radius: 2.5, fill: color, alpha: 1 }], panel.area, theme.background);
    if (!strong) return;
    spots.forEach(({ x, y }, spotLayer) => {
      const lettering = { size: 11, weight: spotLayer === layer ? 700 : 400, fill: color };
      pen.text(String(spotLayer), x + 5, y - 5, lettering);
    });
  });
}

/**
 * Paints a ring around a mark in every panel, and its name if there is a single panel.
 *
 * @param {Pen} pen
 * @param {MapPicture} picture
 * @param {Point} point
 * @param {string} color
 */
export function paintRing(pen, { model, theme, measure, geometry }, { index, layer }, color) {
  const small = geometry.panels.length > 1;
  const side = small ? 9 : 14;
  for (const { layers, area, transform } of geometry.panels) {
    const points = getPoints(model, layers.includes(layer) ? layer : layers[0]);
    const { x, y } = projectPoint(transform, points[2 * index], points[2 * index + 1]);
    pen.clip(area, () => {
      const ring = { x: x - side / 2, y: y - side / 2, width: side, height: side };
      pen.rectangle(ring.x, ring.y, side, side, { stroke: color, lineWidth: 2, radius: side / 2 });
    });
    if (small) continue;
    const name = model.names[model.nameOf[index]].slice(0, 40);
    const width = measure(name, 13, 600) + 12;
    const left = Math.min(Math.max(x + side / 2 + 2, area.x + 2), area.x + area.width - width - 2);
    const top = Math.min(Math.max(y - 11, area.y + 2), area.y + area.height - 24);
    pen.rectangle(left, top, width, 22, {
      fill: theme.background,
      stroke: theme.line,
      radius: 5,
      alpha: 0.94,
    });
    pen.text(name, left + 6, top + 11, { size: 13, weight: 600, fill: theme.ink, isCentered: true });
  }
}

/**
 * Paints the lasso.
 *
 * @param {Pen} pen
 * @param {import("../core/theme.js").Theme} theme
 * @param {Spot[]} line
 */
export function paintLasso(pen, theme, line) {
  if (line.length < 2) return;
  pen.path(
    (path) => {
      path.moveTo(line[0].x, line[0].y);
      for (const { x, y } of line.slice(1)) path.lineTo(x, y);
      path.lineTo(line[0].x, line[0].y);
    },
    { stroke: theme.accent, lineWidth: 1.5 },
  );
}

const ROW_HEIGHT = 20;
const SWATCH = 10;

/**
 * The legend of a file: its height for a width, and a function that paints it.
 *
 * @param {MapPicture} picture
 * @param {number} width
 */
export function createLegend({ theme, colors, measure }, width) {
  const entries = createLegendEntries(colors, theme);
  let [x, row] = [measure(colors.title, FONT_SIZE, 600) + 14, 0];
  const positioned = entries.map(({ label, color }) => {
    const wide = SWATCH + 6 + measure(label, FONT_SIZE) + 16;
    if (x + wide > width && x > 0) [x, row] = [0, row + 1];
    const position = { x, row, label, color };
    x += wide;
    return position;
  });
  return {
    height: (row + 1) * ROW_HEIGHT,
    /** @param {Pen} pen @param {number} left @param {number} base */
    paint: (pen, left, base) => {
      pen.text(colors.title, left, base, { size: FONT_SIZE, weight: 600, fill: theme.ink });
      for (const { x: from, row: line, label, color } of positioned) {
        const y = base + line * ROW_HEIGHT;
        const swatch = { x: left + from, y: y - 4 - SWATCH / 2, width: SWATCH, height: SWATCH };
        pen.rectangle(swatch.x, swatch.y, SWATCH, SWATCH, { fill: color, radius: SWATCH / 2 });
        pen.text(label, left + from + SWATCH + 6, y, { size: FONT_SIZE, fill: theme.muted });
      }
    },
  };
}

const MAX_RAMP_ENTRIES = 8; // number of steps of a scale in the legend

/** The entries of the legend. @param {Coloring} colors @param {import("../core/theme.js").Theme} theme */
export function createLegendEntries({ entries, hasOthers, isRamp }, theme) {
  const step = isRamp ? Math.ceil(entries.length / MAX_RAMP_ENTRIES) : 1;
  const labeled = entries.filter((_, i) => i % step === 0 || i === entries.length - 1);
  const short = labeled.map(({ label, color }) => ({ label: label.slice(0, 30), color }));
  return hasOthers ? [...short, { label: "others", color: theme.muted }] : short;
}
