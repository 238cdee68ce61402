// How it looks. Everything is painted with a pen, which is a canvas' context or writes SVG.

const LEVELS = 16; // strengths that lines are drawn in; each is one path, so thousands of lines stay quick
const FAINTEST = 0.06;
const LEAST_NUMBER = 0.005; // below it two decimals would say 0.00

/** Tokens and lines as they are without pointer and pins. */
function paintHeads(pen, picture, drawn) {
  const { view, theme } = picture;
  pen.fillStyle = theme.background;
  pen.fillRect(0, 0, view.width, view.height);
  paintLines(pen, picture, drawn.lines);
  paintUnits(pen, picture);
  paintSides(pen, picture);
}

/** Lines in buckets of one head and one strength: alpha by the root of the weight, width by the weight. */
function paintLines(pen, picture, lines) {
  const buckets = new Map();
  for (const line of lines) {
    const strength = Math.sqrt(Math.min(line.weight / picture.model.full, 1));
    const level = Math.min(Math.floor(strength * LEVELS), LEVELS - 1);
    const id = level * 1000 + (line.head === MEAN ? 999 : line.head);
    if (!buckets.has(id)) buckets.set(id, []);
    buckets.get(id).push(line);
  }
  // Strong lines last, so that they lie on top.
  for (const [id, bucket] of [...buckets].sort(([one], [other]) => one - other)) {
    const share = (Math.floor(id / 1000) + 1) / LEVELS;
    pen.strokeStyle = seriesColour(picture, bucket[0].head);
    pen.globalAlpha = FAINTEST + (1 - FAINTEST) * share ** 1.3;
    pen.lineWidth = 0.7 + 2.8 * share ** 2;
    pen.beginPath();
    for (const line of bucket) tracePath(pen, picture, line);
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function tracePath(pen, picture, { query, key }) {
  const [x, y] = anchor(picture, "query", picture.placeOf[query]);
  const [u, v] = anchor(picture, "key", picture.placeOf[key]);
  pen.moveTo(x, y);
  if (picture.geometry.vertical) pen.bezierCurveTo((x + u) / 2, y, (x + u) / 2, v, u, v);
  else pen.bezierCurveTo(x, (y + v) / 2, u, (y + v) / 2, u, v);
}

function seriesColour({ model, theme }, head) {
  return head === MEAN ? theme.accent : model.colours[model.heads[head] % model.colours.length];
}

/** Labels; special tokens are quiet, unless they are among those marked. */
function paintUnits(pen, picture, marked = new Set()) {
  const { geometry, shown, theme, model } = picture;
  const [first, end] = inView(picture);
  pen.font = fontOf(theme, geometry.size);
  for (let index = first; index < end; index++) {
    if (!isShown("", index, geometry.every)) continue;
    pen.fillStyle = model.units[shown[index]].special && !marked.has(shown[index]) ? theme.muted : theme.ink;
    for (const side of ["query", "key"]) paintLabel(pen, picture, side, index);
    paintSegment(pen, picture, index);
  }
}

function labelOf({ model, shown, geometry, measure }, index, weight = 400) {
  return ellipsised(model.labels[shown[index]], geometry.labelLimit, geometry.size, measure, weight);
}

function paintLabel(pen, picture, side, index, weight = 400) {
  const [x, y] = labelPlace(picture, side, index);
  pen.textAlign = picture.geometry.vertical ? (side === "query" ? "right" : "left") : "center";
  pen.textBaseline = "middle";
  pen.fillText(labelOf(picture, index, weight), x, y);
}

function labelPlace(picture, side, index) {
  const [x, y] = anchor(picture, side, index);
  const away = (side === "query" ? -1 : 1) * (picture.geometry.vertical ? 9 : 16);
  return picture.geometry.vertical ? [x + away, y + 0.5] : [x, y + away];
}

/** Of a pair's second text every token bears a bar where its lines start or end. */
function paintSegment(pen, picture, index) {
  const { model, shown, geometry, theme } = picture;
  if (!model.units[shown[index]].segment) return;
  pen.fillStyle = theme.second;
  const length = Math.max(geometry.starts[index + 1] - geometry.starts[index] - 2, 0.5);
  for (const side of ["query", "key"]) {
    const [x, y] = anchor(picture, side, index);
    if (geometry.vertical) pen.fillRect(x + (side === "query" ? -3 : 1), y - length / 2, 2, length);
    else pen.fillRect(x - length / 2, y + (side === "query" ? -3 : 1), length, 2);
  }
}

/** What the two sides are. */
function paintSides(pen, picture) {
  const { geometry, view, theme } = picture;
  pen.font = fontOf(theme, 11, 600);
  pen.textBaseline = "middle";
  const [query, key] = ["query: looks", "key: is looked at"];
  if (geometry.vertical) {
    pen.fillStyle = theme.background;
    pen.fillRect(0, 0, view.width, 20);
    pen.fillStyle = theme.muted;
    pen.textAlign = "right";
    pen.fillText(query, geometry.near - view.x - 9, 10);
    pen.textAlign = "left";
    pen.fillText(key, geometry.far - view.x + 9, 10);
  } else {
    pen.fillStyle = theme.muted;
    pen.textAlign = "left";
    pen.fillText(query, 8, 12);
    pen.fillText(key, 8, view.height - 12);
  }
}

/** On top of the faded picture: the lines of some units of one side, and what each of the other side gets. */
function paintChosen(pen, picture, { side, units, targets, lines, mean, colour }) {
  const other = side === "query" ? "key" : "query";
  const marked = targets.filter((unit) => mean[unit] >= LEAST_NUMBER * picture.model.full && picture.geometry.every === 1);
  paintLines(pen, picture, lines);
  for (const unit of marked) paintGround(pen, picture, other, unit, mean[unit], colour);
  paintUnits(pen, picture, new Set(marked));
  for (const unit of marked) paintShare(pen, picture, other, unit, mean[unit]);
  paintSides(pen, picture);
  for (const unit of units) paintTag(pen, picture, side, unit);
}

/** A token's weight as the colour behind it. */
function paintGround(pen, picture, side, unit, weight, colour) {
  const { geometry, model } = picture;
  const [x, y] = labelPlace(picture, side, picture.placeOf[unit]);
  const width = labelWidth(picture, unit) + 8;
  pen.globalAlpha = 0.08 + 0.5 * Math.sqrt(Math.min(weight / model.full, 1));
  pen.fillStyle = colour;
  const left = geometry.vertical ? (side === "query" ? x - width + 4 : x - 4) : x - width / 2;
  box(pen, left, y - 9, width, 18, 4);
  pen.globalAlpha = 1;
}

/** A token's weight as a number beside it, where there is room. */
function paintShare(pen, picture, side, unit, weight) {
  const { geometry, theme, measure } = picture;
  const index = picture.placeOf[unit];
  const [x, y] = labelPlace(picture, side, index);
  const text = formatted(weight, 2);
  const away = side === "query" ? -1 : 1;
  pen.font = fontOf(theme, 11);
  pen.fillStyle = theme.ink;
  pen.textBaseline = "middle";
  if (geometry.vertical) {
    pen.textAlign = side === "query" ? "right" : "left";
    pen.fillText(text, x + away * (labelWidth(picture, unit) + 10), y);
  } else if (measure(text, 11) < geometry.starts[index + 1] - geometry.starts[index] + 2) {
    pen.textAlign = "center";
    pen.fillText(text, x, y + away * 18);
  }
}

function labelWidth(picture, unit) {
  return picture.measure(labelOf(picture, picture.placeOf[unit]), picture.geometry.size);
}

function paintTag(pen, picture, side, unit) {
  const { geometry, theme } = picture;
  const index = picture.placeOf[unit];
  if (index === undefined) return;
  const [x, y] = labelPlace(picture, side, index);
  const width = picture.measure(labelOf(picture, index, 600), geometry.size, 600) + 10;
  pen.fillStyle = theme.ink;
  const left = geometry.vertical ? (side === "query" ? x - width + 5 : x - 5) : x - width / 2;
  box(pen, left, y - 9.5, width, 19, 5);
  pen.fillStyle = theme.background;
  pen.font = fontOf(theme, geometry.size, 600);
  paintLabel(pen, picture, side, index, 600);
}

function box(pen, x, y, width, height, radius) {
  if (pen instanceof SvgPen) return pen.rectangle(x, y, width, height, radius);
  pen.beginPath();
  pen.roundRect(x, y, width, height, radius);
  return pen.fill();
}

/** Where the keyboard is. */
function paintCursor(pen, picture, { side, index }) {
  const { geometry, theme } = picture;
  const [x, y] = labelPlace(picture, side, index);
  const width = picture.measure(labelOf(picture, index), geometry.size) + 12;
  const left = geometry.vertical ? (side === "query" ? x - width + 6 : x - 6) : x - width / 2;
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.roundRect(left, y - 10.5, width, 21, 6);
  pen.stroke();
}
