// Paints the token map, for the screen and for files. All lengths are CSS pixels.

import { CanvasPen } from "../core/pen.js";
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
 * @property {ArrayLike<number> | null} highlighted highlighted marks in ascending order; null for none
 * @property {ArrayLike<number> | null} animatedPoints positions of the marks during an animation
 * @property {DrawnPanel[]} [drawnPanels] the rasterized points of each panel, if available
 */

/** @typedef {{points: Float32Array, pixels: import("../core/pen.js").Pixels}} DrawnPanel positions of the marks in pixels,
 *   [layer, mark, 2], and the pixels of the discs */

const MAX_LABELS = 600; // maximum number of marks with names
const MAX_LABELS_SMALL = 30;
const MAX_HIGHLIGHTED_LABELS = 80; // maximum number of highlighted marks with names
const FONT_SIZE = 12;
const FADED_ALPHA = 0.13;
const MAX_SPARSE_MARKS = 400; // maximum number of marks for which overlaps are rare
const ROUNDS = 16;
const LABEL_BACKGROUND = { radius: 3, alpha: 0.8 }; // background of a name that overlaps marks

/**
 * Paints the panels with their marks and names, which do not depend on the pointer.
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
    const drawnPanel = picture.drawnPanels?.[geometry.panels.indexOf(panel)];
    if (drawnPanel && pen instanceof CanvasPen) pen.replacePixels(drawnPanel.pixels, panel.area);
    pen.clip(panel.area, () => paintPanel(pen, picture, panel, isSmall, drawnPanel));
    pen.rectangle(x + 0.5, y + 0.5, width - 1, height - 1, { stroke: theme.line, radius: isSmall ? 4 : 8 });
  }
}

/**
 * @param {Pen} pen
 * @param {MapPicture} picture
 * @param {Panel} panel
 * @param {boolean} isSmall
 * @param {DrawnPanel} [drawnPanel]
 */
function paintPanel(pen, picture, panel, isSmall, drawnPanel) {
  const { layers, area, transform } = panel;
  const { model, theme } = picture;
  const points = drawnPanel?.points ?? projectPanel(picture, panel);
  if (!drawnPanel) {
    const grouped = groupMarks(picture, layers);
    const mask = picture.highlighted && new Uint8Array(model.count);
    if (mask) for (const mark of Array.from(picture.highlighted ?? [])) mask[mark] = 1;
    const discs = mask
      ? [
          ...createDiscs(
            picture,
            panel,
            points,
            grouped,
            "faded",
            mask.map((isStrong) => 1 - isStrong),
          ),
          ...createDiscs(picture, panel, points, grouped, "strong", mask),
        ]
      : createDiscs(picture, panel, points, grouped, "plain", null);
    pen.discs(discs, area, theme.background);
  }
  const zero = projectPoint(transform, 0, 0);
  const cross = { stroke: theme.line, alpha: 0.6 };
  pen.path((path) => {
    path.moveTo(area.x, zero.y);
    path.lineTo(area.x + area.width, zero.y);
    path.moveTo(zero.x, area.y);
    path.lineTo(zero.x, area.y + area.height);
  }, cross);
  const maxLabels = isSmall ? MAX_LABELS_SMALL : MAX_LABELS;
  const radius = computeRadius(model.count * layers.length, isSmall);
  if (layers.length === 1) paintNames(pen, picture, points, area, radius, model.count <= maxLabels);
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

/** Returns the marks of a panel in pixels, [layer, mark, 2]. @param {MapPicture} picture @param {Panel} panel */
export function projectPanel({ model, animatedPoints }, { layers, transform }) {
  const points = new Float32Array(2 * model.count * layers.length);
  layers.forEach((layer, i) => {
    points.set(projectPoints(transform, animatedPoints ?? getPoints(model, layer)), 2 * model.count * i);
  });
  return points;
}

/**
 * Discs grouped by color: group g contains `order[starts[g]]` to `order[starts[g + 1] - 1]`, which are indices of
 * points.
 *
 * @typedef {{order: Uint32Array, starts: Uint32Array}} GroupedMarks
 */

/**
 * Groups the marks of some layers in rounds with some marks of each layer and color, so that no color covers all
 * other colors. Gray marks come first, below all colors.
 *
 * @param {Pick<MapPicture, "model" | "colors" | "by">} picture
 * @param {number[]} layers
 * @returns {GroupedMarks}
 */
export function groupMarks({ model: { count }, colors, by }, layers) {
  const fills = colors.entries.length + 1;
  const rounds = count * layers.length > MAX_SPARSE_MARKS ? ROUNDS : 1;
  const groupOf = new Uint16Array(count * layers.length);
  const starts = new Uint32Array(rounds * fills + 1);
  layers.forEach((layer, i) => {
    for (let mark = 0; mark < count; mark++) {
      const entry = by === "layer" ? layer : colors.colorOf[mark];
      const group = entry < 0 ? 0 : ((mark + i) % rounds) * fills + entry + 1;
      groupOf[i * count + mark] = group;
      starts[group + 1]++;
    }
  });
  for (let group = 1; group < starts.length; group++) starts[group] += starts[group - 1];
  const next = starts.slice();
  const order = new Uint32Array(groupOf.length);
  for (let point = 0; point < groupOf.length; point++) order[next[groupOf[point]]++] = point;
  return { order, starts };
}

/**
 * Returns the discs of marks in a style: faded marks are the background of highlighted (strong) marks.
 *
 * @param {MapPicture} picture
 * @param {Panel} panel
 * @param {Float32Array} points the result of `projectPanel`
 * @param {GroupedMarks} grouped
 * @param {"plain" | "faded" | "strong"} style
 * @param {Uint8Array | null} mask 1 for each mark to include; null for all
 * @returns {import("../core/discs.js").Discs[]}
 */
export function createDiscs(
  { model, theme, colors, geometry },
  { layers },
  points,
  { order, starts },
  style,
  mask,
) {
  const fills = [theme.muted, ...colors.entries.map(({ color }) => color)];
  const radius = computeRadius(model.count * layers.length, geometry.panels.length > 1);
  const alpha = model.count > MAX_SPARSE_MARKS ? 0.7 : 0.85;
  const looks = {
    plain: (/** @type {boolean} */ isOther) => ({ radius, alpha: isOther ? 0.45 : alpha }),
    faded: () => ({ radius, alpha: FADED_ALPHA }),
    strong: (/** @type {boolean} */ isOther) => ({
      radius: 1.5 * radius,
      alpha: 1,
      ...(isOther ? { fill: theme.ink } : {}),
    }),
  };
  const discs = [];
  for (let group = 0; group + 1 < starts.length; group++) {
    const positions = gatherPoints(
      points,
      order.subarray(starts[group], starts[group + 1]),
      mask,
      model.count,
    );
    const entry = group % fills.length;
    if (positions.length) discs.push({ positions, fill: fills[entry], ...looks[style](entry === 0) });
  }
  return discs;
}

/** @param {Float32Array} points @param {Uint32Array} indices @param {Uint8Array | null} mask @param {number} count */
function gatherPoints(points, indices, mask, count) {
  const positions = new Float32Array(2 * indices.length);
  let length = 0;
  for (let i = 0; i < indices.length; i++) {
    const point = indices[i];
    if (mask && !mask[point % count]) continue;
    positions[length] = points[2 * point];
    positions[length + 1] = points[2 * point + 1];
    length += 2;
  }
  return positions.subarray(0, length);
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
  const first = Array.from({ length: Math.min(highlighted?.length ?? 0, MAX_HIGHLIGHTED_LABELS) }, (_, i) =>
    Number(highlighted?.[i]),
  );
  const strong = new Set(canLabelAll ? Array.from(highlighted ?? []) : first);
  const unhighlighted = canLabelAll ? Array.from({ length: model.count }, (_, i) => i) : [];
  // Start with the rightmost mark of a cluster, because the space to its right is free.
  unhighlighted.sort((a, b) => points[2 * b] - points[2 * a]);
  const occupied = new OccupiedSpace(FONT_SIZE + 3);
  for (const i of [...first, ...unhighlighted]) {
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

/** For each line of text, the horizontal intervals that labels already occupy. */
class OccupiedSpace {
  /** @param {number} height height of a line */
  constructor(height) {
    this.height = height;
    /** @type {Map<number, [number, number][]>} */
    this.lines = new Map();
  }

  /** Returns the indices of the lines that a text at height `y` overlaps. @param {number} y */
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
 * Paints the trajectory of a mark through the layers, labeled with layer numbers.
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
 * Returns the height of a file's legend at a width, and a function that paints the legend.
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

/** Returns the entries of the legend. @param {Coloring} colors @param {import("../core/theme.js").Theme} theme */
export function createLegendEntries({ entries, hasOthers, isRamp }, theme) {
  const step = isRamp ? Math.ceil(entries.length / MAX_RAMP_ENTRIES) : 1;
  const labeled = entries.filter((_, i) => i % step === 0 || i === entries.length - 1);
  const short = labeled.map(({ label, color }) => ({ label: label.slice(0, 30), color }));
  return hasOthers ? [...short, { label: "others", color: theme.muted }] : short;
}
