// What the model view draws: thumbnails, labels and measures; the order of heads; where each one stands.

const LEAST_SIDE = 16; // of a thumbnail, in pixels; below it the picture scrolls sideways instead
const MOST_SIDE = 132;
const SPACE = 7; // between thumbnails, with room for the line under a labelled one
const OWN_NUMBER = 14; // height of a thumbnail's own head number
const UNSORTED = { measure: null, heads: true, layers: true };

/** The payload, as packed by model_view.py: header length, header, two colour tables, float64 measures, entries. */
function unpackThumbnails(bytes) {
  const headerLength = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const tables = 4 + headerLength;
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, tables)));
  const numbers = tables + 2 * TABLE_BYTES;
  const count = header.measures.length * header.layerCount * header.headCount;
  return {
    ...header,
    source: header.source && visibleText(header.source), // a person's text: a control character would break an SVG
    lightTable: bytes.subarray(tables, tables + TABLE_BYTES),
    darkTable: bytes.subarray(tables + TABLE_BYTES, numbers),
    // A copy, because a view of floats would need an aligned start.
    numbers: new Float64Array(bytes.slice(numbers, numbers + 8 * count).buffer),
    entries: bytes.subarray(numbers + 8 * count),
    below: false,
    missing: false,
  };
}

/** A measure of every head of a layer. */
function measured(model, measure, layer) {
  const start = (model.measures.indexOf(measure) * model.layerCount + layer) * model.headCount;
  return model.numbers.subarray(start, start + model.headCount);
}

/** The rows of the picture from the top: a layer, and its heads from the left; largest first where sorted. */
function arrangedRows(model, sort) {
  const rows = Array.from({ length: model.layerCount }, (_, layer) => {
    const values = sort.measure === null ? null : measured(model, sort.measure, layer);
    const heads = Array.from({ length: model.headCount }, (_, head) => head);
    if (values && sort.heads) heads.sort((one, other) => values[other] - values[one]); // stable: ties stay as they are
    return { layer, heads, mean: values ? values.reduce((sum, value) => sum + value, 0) / values.length : 0 };
  });
  return sort.measure !== null && sort.layers ? rows.sort((one, other) => other.mean - one.mean) : rows;
}

/** Whether each thumbnail needs its own head number, as columns stand for no head. */
function numbersItself(sort) {
  return sort.measure !== null && sort.heads;
}

/** How the picture is ordered, as a sentence; "" where it is as in the model. */
function orderSentence(sort) {
  if (sort.measure === null || !(sort.heads || sort.layers)) return "";
  const what = [sort.heads ? "heads within each layer" : "", sort.layers ? "layers by their mean" : ""].filter(Boolean);
  return `Sorted by ${sort.measure}, largest first: ${what.join(", ")}`;
}

function blockSentence({ block, unit, unitCount }) {
  if (block === 1) return "";
  return `${unitCount} ${unit}: each cell is the largest of ${block} × ${block} values`;
}

/** Lengths in CSS pixels of a picture as wide as `width`. */
function gridLayout(model, width, sort, measure) {
  const axis = Math.max(measure("layer ↓", 11, 600), measure("head →", 11, 600));
  const left = Math.ceil(axis) + GAP;
  const own = numbersItself(sort) ? OWN_NUMBER : 0;
  const room = Math.floor((width - left) / model.headCount) - SPACE;
  const side = Math.min(Math.max(room, LEAST_SIDE), MOST_SIDE);
  const top = own ? 22 : 36;
  return {
    left,
    top,
    own,
    side,
    pitchX: side + SPACE,
    pitchY: side + SPACE + own,
    width: left + model.headCount * (side + SPACE),
    height: top + model.layerCount * (side + SPACE + own),
  };
}

/** The thumbnail's upper left corner, without its number. */
function cornerOf({ left, top, own, pitchX, pitchY }, { row, column }) {
  return { x: left + column * pitchX, y: top + row * pitchY + own };
}

/** The place {row, column} under a point, its share of the space around it included; or null. */
function placeAt(model, { left, top, pitchX, pitchY }, x, y) {
  const [row, column] = [Math.floor((y - top) / pitchY), Math.floor((x - left) / pitchX)];
  const inside = row >= 0 && row < model.layerCount && column >= 0 && column < model.headCount;
  return inside ? { row, column } : null;
}

function headAt(rows, { row, column }) {
  return { layer: rows[row].layer, head: rows[row].heads[column] };
}

function placeOf(rows, { layer, head }) {
  const row = rows.findIndex((one) => one.layer === layer);
  return { row, column: rows[row].heads.indexOf(head) };
}

function hasLabels(model) {
  return model.labels.some((row) => row.some(Boolean));
}

function sameHead(one, other) {
  return one?.layer === other?.layer && one?.head === other?.head;
}

function headName({ layer, head }) {
  return `Layer ${layer + 1}, head ${head + 1}`;
}

/** "previous token · Previous 0.8312": its label, if it has one, and what it is sorted by. */
function headDetail(model, sort, { layer, head }) {
  const parts = [model.labels[layer][head] || "no label"];
  if (sort.measure !== null) parts.push(`${sort.measure} ${formatted(measured(model, sort.measure, layer)[head], 4)}`);
  return parts.join(" · ");
}

function headSentence(model, sort, which) {
  return `${headName(which)} · ${headDetail(model, sort, which)}`;
}
