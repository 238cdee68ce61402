// What is drawn: numbers, labels, scale and theme, read once per update. No drawing here.

const TABLE_BYTES = 768; // 256 colours of three bytes
const CENTRE = 128; // entry of a diverging table that stands for 0
const NO_VALUE = -1;

/** The payload, as packed by matrix.py: header length, header, two colour tables, float32 values by row. */
function unpack(bytes) {
  const headerLength = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const tables = 4 + headerLength;
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, tables)));
  const values = tables + 2 * TABLE_BYTES;
  return {
    ...header,
    rowLabels: header.rows.map(visibleText),
    columnLabels: header.columns.map(visibleText),
    rowCount: header.rows.length,
    columnCount: header.columns.length,
    lightTable: bytes.subarray(tables, tables + TABLE_BYTES),
    darkTable: bytes.subarray(tables + TABLE_BYTES, values),
    // A copy, because a view of floats would need an aligned start.
    values: new Float32Array(bytes.slice(values).buffer),
    colourIndex: colourIndexer(header.scale),
  };
}

function valueAt(model, row, column) {
  return model.values[row * model.columnCount + column];
}

/** Value → entry of the colour table, or NO_VALUE. */
function colourIndexer(scale) {
  const bend = scale.curve === "sqrt" ? Math.sqrt : (share) => share;
  if (scale.kind === "diverging") {
    return (value) => {
      if (value !== value) return NO_VALUE;
      const share = bend(Math.min(Math.abs(value) / scale.high, 1));
      return value < 0 ? CENTRE - Math.round(CENTRE * share) : CENTRE + Math.round((255 - CENTRE) * share);
    };
  }
  const span = scale.high - scale.low;
  return (value) => {
    if (value !== value) return NO_VALUE;
    return Math.round(255 * bend(Math.min(Math.max((value - scale.low) / span, 0), 1)));
  };
}

/** Where the colour of a value lies along the legend's bar, 0 to 1. */
function placeOnBar(scale, value) {
  const bend = scale.curve === "sqrt" ? Math.sqrt : (share) => share;
  if (scale.kind === "diverging") {
    return 0.5 + (Math.sign(value) * bend(Math.abs(value) / scale.high)) / 2;
  }
  return bend((value - scale.low) / (scale.high - scale.low));
}

function legendTicks(scale) {
  const shares = scale.curve === "sqrt" ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  if (scale.kind === "diverging") {
    const positive = scale.curve === "sqrt" ? [0.25, 1] : [0.5, 1];
    const upper = positive.map((share) => share * scale.high);
    return [...upper.map((value) => -value).reverse(), 0, ...upper];
  }
  return shares.map((share) => scale.low + share * (scale.high - scale.low));
}

/** The label of a tick; an end says "≤" or "≥" when cells lie beyond it. */
function tickText(model, value) {
  const text = typographic(String(Number(value.toPrecision(3))));
  if (value === model.scale.low && model.below) return `≤ ${text}`;
  if (value === model.scale.high && model.above) return `≥ ${text}`;
  return text;
}

function legendSentence(model) {
  const { low, high, curve } = model.scale;
  const ends = [low, high].map((end) => typographic(String(Number(end.toPrecision(6)))));
  const bent = curve === "sqrt" ? ", square-root colours" : "";
  return `${model.valueName}, fixed scale ${ends[0]} to ${ends[1]}${bent}`;
}

function formatted(value, decimals) {
  if (value !== value) return "no value";
  const text = value.toFixed(decimals);
  return typographic(Number(text) === 0 ? text.replace("-", "") : text);
}

function typographic(number) {
  return number.replace("-", "−");
}

function positionOf(positions, index) {
  return positions ? positions[index] : null;
}

/** "ground (11)": the label with the position that tells it from its repetitions. */
function named(label, position) {
  return position === null ? label : `${label} (${position})`;
}

function sentence(model, cell) {
  const row = named(model.rowLabels[cell.row], positionOf(model.rowPositions, cell.row));
  const column = named(model.columnLabels[cell.column], positionOf(model.columnPositions, cell.column));
  return `${row} → ${column}: ${formatted(valueAt(model, cell.row, cell.column), model.decimals)}`;
}

/** Streamlit's theme as it stands around an element. */
function readTheme(element, model) {
  const style = getComputedStyle(element);
  const variable = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  const background = variable("--st-background-color", "#fbfaf7");
  const dark = luminance(channels(background)) < 0.3;
  const ink = variable("--st-text-color", dark ? "#ecebf2" : "#1c1b22");
  const table = dark ? model.darkTable : model.lightTable;
  return {
    background,
    dark,
    ink,
    muted: mixed(ink, background, 0.36),
    line: mixed(ink, background, 0.82),
    accent: variable("--st-primary-color", dark ? "#a7a2ff" : "#4338ca"),
    font: variable("--st-font", "sans-serif"),
    table,
    words: packedColours(table),
    css: cssColours(table),
    inks: cellInks(table),
    missing: [mixed(ink, background, 0.9), mixed(ink, background, 0.72)],
  };
}

const probe = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", {
  willReadFrequently: true,
});

/** Any CSS colour as red, green and blue; the browser itself is the parser. */
function channels(colour) {
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

function luminance([red, green, blue]) {
  const linear = (channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

function contrast(one, other) {
  const [dim, bright] = [one, other].sort((a, b) => a - b);
  return (bright + 0.05) / (dim + 0.05);
}

/** `share` of the second colour mixed into the first. */
function mixed(first, second, share) {
  const [one, other] = [channels(first), channels(second)];
  return `rgb(${[0, 1, 2].map((i) => Math.round(one[i] * (1 - share) + other[i] * share)).join(", ")})`;
}

function cssColours(table) {
  return Array.from({ length: 256 }, (_, i) => `rgb(${table[3 * i]}, ${table[3 * i + 1]}, ${table[3 * i + 2]})`);
}

/** The table as the 32-bit words of an ImageData; every machine a browser runs on is little-endian. */
function packedColours(table) {
  const words = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    words[i] = (255 << 24) | (table[3 * i + 2] << 16) | (table[3 * i + 1] << 8) | table[3 * i];
  }
  return words;
}

/** Per table entry the ink, near-black or near-white, that reads better on it. */
function cellInks(table) {
  const [black, white] = ["#17161d", "#ffffff"];
  const [blackness, whiteness] = [black, white].map((colour) => luminance(channels(colour)));
  return Array.from({ length: 256 }, (_, i) => {
    const ground = luminance([table[3 * i], table[3 * i + 1], table[3 * i + 2]]);
    return contrast(ground, blackness) >= contrast(ground, whiteness) ? black : white;
  });
}
