// Where things are: gutters, pitch of the cells, angle and thinning of the labels. Numbers only, no drawing.

const MOST_PITCH = 56;
const READABLE_PITCH = 16; // below this a label of 11 px no longer has its own line
const TIGHT_PITCH = 14; // the least that is chosen without being asked for
const ROOMY_PITCH = 20; // down to this the whole matrix is preferred to scrolling
const NUMBERED_PITCH = 29; // from here on two decimals fit into a cell
const LARGEST_PITCH = 96;
const GAP = 8; // between a label and its cells
const BOLD = 1.1; // how much wider a label may become when it is highlighted
const ROW_LABEL_LIMIT = 150;
const COLUMN_LABEL_LIMIT = 120;
const DIAGONAL = Math.SQRT1_2;

function fontOf(theme, size, weight = 400) {
  return `${weight} ${size}px ${theme.font}`;
}

/** Measures texts in one font and remembers, since every layout asks for the same labels. */
function textMeasure(theme) {
  const context = document.createElement("canvas").getContext("2d");
  const known = new Map();
  return (text, size, weight = 400) => {
    const id = `${size}/${weight}/${text}`;
    let width = known.get(id);
    if (width === undefined) {
      context.font = fontOf(theme, size, weight);
      width = context.measureText(text).width;
      known.set(id, width);
    }
    return width;
  };
}

/** The text cut to a width, with an ellipsis where something is missing. */
function ellipsised(text, limit, size, measure, weight = 400) {
  if (measure(text, size, weight) <= limit) return text;
  const letters = Array.from(text); // by code point, so that no surrogate pair is cut in two
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(letters.slice(0, middle).join("") + "…", size, weight) <= limit) low = middle;
    else high = middle - 1;
  }
  return letters.slice(0, low).join("") + "…";
}

function widest(labels, size, measure, limit) {
  let most = 0;
  for (const label of labels) {
    most = Math.max(most, measure(label, size));
    if (most >= limit) return limit;
  }
  return most;
}

/**
 * The geometry of a picture in a box. zoom: {mode: "auto" | "fit" | "free", factor}; the factor multiplies the
 * automatic pitch. Lengths are CSS pixels.
 */
function layout(model, box, zoom, measure) {
  const size = 12;
  const left = rowGutter(model, box, size, measure);
  const pads = { left, right: 2 };
  let pitch = choosePitch(model, box, zoom, left, 90, pads.right);
  let columns = columnLabelling(model, pitch.x, measure);
  // The labels' height depends on the pitch and, through the room left for rows, the other way round.
  for (let round = 0; round < 2; round++) {
    pads.right = Math.max(2, columns.overhang);
    pitch = choosePitch(model, box, zoom, left, columns.height, pads.right);
    columns = columnLabelling(model, pitch.x, measure);
  }
  return {
    left,
    top: columns.height,
    right: Math.max(2, columns.overhang),
    pitchX: pitch.x,
    pitchY: pitch.y,
    automatic: pitch.automatic,
    whole: pitch.whole,
    columns,
    rows: { size: pitch.y >= READABLE_PITCH ? size : 11, every: everyNth(model.rowLabels, pitch.y, 14) },
    contentWidth: left + model.columnCount * pitch.x + Math.max(2, columns.overhang),
    contentHeight: columns.height + model.rowCount * pitch.y + 2,
  };
}

function rowGutter(model, box, size, measure) {
  const limit = Math.min(ROW_LABEL_LIMIT, Math.max(64, box.width * 0.3));
  const labels = widest(model.rowLabels, size, measure, limit);
  const axes = Math.max(measure(rowAxisText(model), 11, 600), measure(columnAxisText(model), 11, 600));
  return Math.ceil(Math.min(Math.max(labels * BOLD, axes), limit)) + GAP + 6;
}

function rowAxisText(model) {
  return `${model.rowAxis} ↓`;
}

function columnAxisText(model) {
  return `${model.columnAxis} →`;
}

function choosePitch(model, box, zoom, left, top, right) {
  const room = { x: box.width - left - right - 2, y: box.height - top - 4 };
  const fit = { x: room.x / model.columnCount, y: room.y / model.rowCount };
  const inView = Math.min(((box.inView ?? box.height) - top - 4) / model.rowCount, fit.y);
  const automatic = model.square ? automaticSquare({ ...fit, inView }) : automaticOblong(fit);
  const whole = model.square
    ? equal(Math.min(fit.x, fit.y, MOST_PITCH))
    : { x: Math.min(fit.x, MOST_PITCH), y: Math.min(fit.y, automatic.y) };
  let pitch = automatic;
  if (zoom.mode === "fit") pitch = whole;
  if (zoom.mode === "free") pitch = scaled(automatic, zoom.factor, model.square);
  return { x: crisp(pitch.x), y: crisp(pitch.y), automatic, whole };
}

function equal(pitch) {
  return { x: pitch, y: pitch };
}

function automaticSquare(fit) {
  // A little tighter than readable is better than scrolling for the last two columns.
  const readable = fit.x >= TIGHT_PITCH ? Math.floor(fit.x) : READABLE_PITCH;
  const wide = Math.min(readable, MOST_PITCH);
  // Rather a little smaller and wholly in view than large and scrolled, but with the numbers where they fit.
  const numbered = Math.min(Math.floor(fit.y), NUMBERED_PITCH);
  const shown = Math.max(Math.floor(fit.inView), numbered, ROOMY_PITCH);
  return equal(Math.min(wide, shown));
}

function automaticOblong(fit) {
  return {
    x: Math.min(Math.max(fit.x, 1), MOST_PITCH),
    y: Math.min(Math.max(Math.floor(fit.y), READABLE_PITCH + 2), 30),
  };
}

function scaled(automatic, factor, square) {
  const x = Math.min(automatic.x * factor, LARGEST_PITCH);
  return square ? equal(x) : { x, y: Math.min(Math.max(automatic.y * factor, 8), 44) };
}

/** Whole pixels where a cell is large enough for a reader to notice uneven ones. */
function crisp(pitch) {
  return pitch >= 6 ? Math.floor(pitch) : pitch;
}

/** Angle, thinning and height of the column labels for a pitch. */
function columnLabelling(model, pitch, measure) {
  const numeric = countsUp(model.columnLabels);
  const size = pitch >= READABLE_PITCH || numeric ? 12 : 11;
  const longest = widest(model.columnLabels, size, measure, COLUMN_LABEL_LIMIT);
  const axes = 38; // the corner's two axis names
  if (numeric || longest <= pitch - 6) {
    const every = everyNth(model.columnLabels, pitch, longest + 10);
    return { angle: 0, size, every, limit: longest + 1, height: axes, overhang: longest / 2 - pitch / 2 };
  }
  const every = everyNth(model.columnLabels, pitch, 13);
  const shown = model.columnLabels.filter((label, i) => isShown(label, i, every));
  const tallest = widest(shown, size, measure, COLUMN_LABEL_LIMIT);
  if (pitch * every >= ROOMY_PITCH && every === 1) {
    const height = Math.max(Math.ceil((longest * BOLD + 6) * DIAGONAL) + 16, axes);
    return { angle: 45, size, every, limit: longest + 1, height, overhang: diagonalOverhang(model, pitch, size, measure) };
  }
  return { angle: 90, size, every, limit: longest + 1, height: Math.max(Math.ceil(tallest * BOLD) + GAP + 6, axes), overhang: 2 };
}

/** Whether labels are 1, 2, 3 … as for dimensions: only then may most of them be left out. */
function countsUp(labels) {
  return labels.length > 1 && labels.every((label, i) => /^\d+$/.test(label) && Number(label) === Number(labels[0]) + i);
}

/** How far slanted labels reach beyond the last column. */
function diagonalOverhang(model, pitch, size, measure) {
  let most = 0;
  for (let back = 0; back < Math.min(model.columnCount, 8); back++) {
    const label = model.columnLabels[model.columnCount - 1 - back];
    const reach = (Math.min(measure(label, size), COLUMN_LABEL_LIMIT) + 12) * DIAGONAL;
    most = Math.max(most, reach - pitch * (back + 0.5));
  }
  return Math.ceil(most);
}

/** 1, 2, 5, 10, 20 …: the thinning at which labels have the room they need. */
function everyNth(labels, pitch, room) {
  let every = 1;
  for (let decade = 1; ; decade *= 10) {
    for (const step of [1, 2, 5]) {
      every = decade * step;
      if (every * pitch >= room || every >= labels.length) return every;
    }
  }
}

/** Whether a thinned label is among those shown; numbers are thinned to round ones, tokens by their order. */
function isShown(label, index, every) {
  if (every === 1) return true;
  const number = /^-?\d+$/.test(label) ? Number(label) : index;
  return number % every === 0;
}

/** Rows and columns that a window [x, y, width, height] of the content shows. */
function visibleRange(model, geometry, view) {
  const first = (scroll, pitch) => Math.max(Math.floor(scroll / pitch), 0);
  const last = (scroll, room, pitch, count) => Math.min(Math.ceil((scroll + room) / pitch), count);
  return {
    rowStart: first(view.y, geometry.pitchY),
    rowEnd: last(view.y, view.height - geometry.top, geometry.pitchY, model.rowCount),
    columnStart: first(view.x, geometry.pitchX),
    columnEnd: last(view.x, view.width - geometry.left, geometry.pitchX, model.columnCount),
  };
}

/** The cell, or the row or column label alone, under a point of the view. */
function pointed(model, geometry, view, x, y) {
  const column = Math.floor((x - geometry.left + view.x) / geometry.pitchX);
  const row = Math.floor((y - geometry.top + view.y) / geometry.pitchY);
  const inColumn = x >= geometry.left && column >= 0 && column < model.columnCount;
  const inRow = y >= geometry.top && row >= 0 && row < model.rowCount;
  if (inRow && inColumn) return { row, column };
  if (inRow && x < geometry.left) return { row, column: null };
  if (x < geometry.left || y >= geometry.top) return null;
  return pointedColumnLabel(model, geometry, view, x, y);
}

function pointedColumnLabel(model, geometry, view, x, y) {
  // A slanted label is left behind by as much as it is above the cells.
  const slant = geometry.columns.angle === 45 ? geometry.top - y : 0;
  const column = Math.floor((x - slant - geometry.left + view.x) / geometry.pitchX);
  return column >= 0 && column < model.columnCount ? { row: null, column } : null;
}
