// Where tokens and lines are, in columns and in reading direction. Numbers only, no drawing.

const ROW_PITCH = 23;
const LEAST_PITCH = 13; // below this a label has no line of its own, and labels are thinned
const SPAN = [140, 560]; // between the two columns
const NUMBER_ROOM = 46; // beside the labels, for a weight
const LABEL_ROOM = 168;
const READING_HEIGHT = 330;
const TOKEN_GAP = 14;
const EDGE = 6;

/**
 * Both layouts put unit number i of those shown at starts[i] to starts[i + 1] along the main axis: downwards in
 * columns, to the right in reading direction. `near` and `far` are where lines leave queries and reach keys.
 */
function headLayout(model, shown, box, options, measure) {
  return options.layout === "columns"
    ? columnsLayout(model, shown, box, options, measure)
    : readingLayout(model, shown, box, options, measure);
}

function columnsLayout(model, shown, box, options, measure) {
  const head = 26;
  const fitting = (box.height - head - EDGE) / shown.length;
  const pitch = options.fit ? Math.min(ROW_PITCH, Math.max(fitting, 0.5)) : ROW_PITCH;
  const size = pitch >= 18 ? 13 : 11;
  const most = Math.min(LABEL_ROOM, box.width * 0.27);
  const labels = Math.ceil(widest(shown.map((i) => model.labels[i]), size, measure, most)) + 14;
  const gutter = labels + Math.min(NUMBER_ROOM, box.width * 0.1);
  const span = Math.min(Math.max(box.width - 2 * gutter, SPAN[0]), SPAN[1]);
  const left = Math.max((box.width - 2 * gutter - span) / 2, 0);
  return {
    vertical: true,
    pitch,
    size,
    every: everyNth(shown, pitch, LEAST_PITCH),
    starts: Float64Array.from({ length: shown.length + 1 }, (_, i) => head + i * pitch),
    near: left + gutter,
    far: left + gutter + span,
    labelLimit: labels - 12,
    contentWidth: Math.max(box.width, 2 * gutter + span),
    contentHeight: head + shown.length * pitch + EDGE,
  };
}

function readingLayout(model, shown, box, options, measure) {
  const size = 13;
  const widths = shown.map((i) => Math.min(measure(model.labels[i], size), LABEL_ROOM) + TOKEN_GAP);
  const wanted = widths.reduce((sum, width) => sum + width, 0);
  const room = box.width - 2 * EDGE;
  const shrink = options.fit && wanted > room ? room / wanted : 1;
  const starts = new Float64Array(shown.length + 1);
  starts[0] = EDGE + Math.max((room - wanted * shrink) / 2, 0);
  widths.forEach((width, i) => (starts[i + 1] = starts[i] + width * shrink));
  const longest = shrink < 1 ? 40 : 0;
  return {
    vertical: false,
    pitch: (wanted * shrink) / shown.length,
    size,
    every: everyNth(shown, (wanted * shrink) / shown.length, longest),
    starts,
    near: 62,
    far: READING_HEIGHT - 62,
    labelLimit: LABEL_ROOM,
    contentWidth: Math.max(box.width, wanted * shrink + 2 * EDGE),
    contentHeight: READING_HEIGHT,
  };
}

function middleOf(geometry, index) {
  return (geometry.starts[index] + geometry.starts[index + 1]) / 2;
}

/** Where lines touch a unit; index counts the units shown. */
function anchor({ geometry, view }, side, index) {
  const along = middleOf(geometry, index);
  const across = side === "query" ? geometry.near : geometry.far;
  return geometry.vertical ? [across - view.x, along - view.y] : [along - view.x, across - view.y];
}

/** First and last index, exclusive, of the units that a window of the content shows. */
function inView({ geometry, view }) {
  const [from, room] = geometry.vertical ? [view.y, view.height] : [view.x, view.width];
  const first = slotAt(geometry, from);
  return [Math.max(first, 0), Math.min(slotAt(geometry, from + room) + 1, geometry.starts.length - 1)];
}

/** Index of the unit at a place along the main axis; -1 before the first, the count beyond the last. */
function slotAt({ starts }, place) {
  if (place < starts[0]) return -1;
  let [low, high] = [0, starts.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The unit under a point of the view, {side, index}; between the sides there is none. */
function unitAt({ geometry, view }, x, y) {
  const [along, across] = geometry.vertical ? [y + view.y, x + view.x] : [x + view.x, y + view.y];
  const index = slotAt(geometry, along);
  if (index < 0 || index >= geometry.starts.length - 1) return null;
  const reach = (geometry.far - geometry.near) * 0.2;
  if (across < geometry.near + reach) return { side: "query", index };
  return across > geometry.far - reach ? { side: "key", index } : null;
}
