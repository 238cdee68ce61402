// How it looks. Every function paints onto a 2d context whose unit is the CSS pixel, for the screen and for files.

const GAPPED_PITCH = 12; // from here on cells are painted one by one, a pixel apart; below, as one image

/** The picture without anything that depends on the pointer. */
function paintPicture(context, picture) {
  const { geometry, view, theme } = picture;
  context.fillStyle = theme.background;
  context.fillRect(0, 0, view.width, view.height);
  const range = visibleRange(picture.model, geometry, view);
  clipped(context, cellArea(geometry, view), () => {
    if (gapOf(geometry)) paintBlocks(context, picture, range);
    else paintImage(context, picture, range);
    paintFrame(context, picture);
  });
  clipped(context, { x: 0, y: geometry.top - 1, width: geometry.left, height: view.height }, () =>
    paintRowLabels(context, picture, range),
  );
  paintColumnLabels(context, picture, range);
  paintAxisNames(context, picture);
}

function cellArea(geometry, view) {
  return { x: geometry.left - 1, y: geometry.top - 1, width: view.width - geometry.left + 1, height: view.height };
}

function clipped(context, area, paint) {
  context.save();
  context.beginPath();
  context.rect(area.x, area.y, area.width, area.height);
  context.clip();
  paint();
  context.restore();
}

/** A length moved to the next device pixel, so that edges stay sharp. */
function snapped(picture, length) {
  return Math.round(length * picture.ratio) / picture.ratio;
}

function columnEdge(picture, column) {
  return snapped(picture, picture.geometry.left + column * picture.geometry.pitchX - picture.view.x);
}

function rowEdge(picture, row) {
  return snapped(picture, picture.geometry.top + row * picture.geometry.pitchY - picture.view.y);
}

function paintFrame(context, picture) {
  const { model, theme } = picture;
  const [x, y] = [columnEdge(picture, 0), rowEdge(picture, 0)];
  const gap = gapOf(picture.geometry);
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.strokeRect(
    x - 0.5,
    y - 0.5,
    columnEdge(picture, model.columnCount) - x - gap + 1,
    rowEdge(picture, model.rowCount) - y - gap + 1,
  );
}

function gapOf(geometry) {
  return Math.min(geometry.pitchX, geometry.pitchY) >= GAPPED_PITCH ? 1 : 0;
}

function paintBlocks(context, picture, range) {
  const { model, theme, geometry } = picture;
  const gap = gapOf(geometry);
  const number = numberStyle(picture);
  for (let row = range.rowStart; row < range.rowEnd; row++) {
    const y = rowEdge(picture, row);
    const height = rowEdge(picture, row + 1) - y - gap;
    for (let column = range.columnStart; column < range.columnEnd; column++) {
      const x = columnEdge(picture, column);
      const width = columnEdge(picture, column + 1) - x - gap;
      const value = valueAt(model, row, column);
      const entry = model.colourIndex(value);
      if (entry === NO_VALUE) {
        paintHatching(context, theme, x, y, width, height);
        continue;
      }
      context.fillStyle = theme.css[entry];
      context.fillRect(x, y, width, height);
      if (number) paintNumber(context, number, theme.inks[entry], value, x + width / 2, y + height / 2);
    }
  }
}

/** How numbers are written into cells; null where the longest would not fit. */
function numberStyle({ model, geometry, theme, measure }) {
  const size = geometry.pitchX >= 44 ? 12 : 11;
  const longest = Math.max(...[model.least, model.most].map((value) => measure(formatted(value, 2), size)));
  if (longest > geometry.pitchX - 7 || geometry.pitchY < size + 5) return null;
  return { font: fontOf(theme, size) };
}

function paintNumber(context, style, ink, value, x, y) {
  context.font = style.font;
  context.fillStyle = ink;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(formatted(value, 2), x, y + 0.5);
}

/** "No value": diagonal lines on a neutral ground, which no number is ever drawn as. */
function paintHatching(context, theme, x, y, width, height) {
  clipped(context, { x, y, width, height }, () => {
    context.fillStyle = theme.missing[0];
    context.fillRect(x, y, width, height);
    context.strokeStyle = theme.missing[1];
    context.lineWidth = 1;
    context.beginPath();
    for (let start = -height; start < width; start += 5) {
      context.moveTo(x + start, y + height);
      context.lineTo(x + start + height, y);
    }
    context.stroke();
  });
}

/** Small cells: an image of one pixel a cell, enlarged; or, where cells are finer than pixels, their strongest. */
function paintImage(context, picture, range) {
  const { geometry, ratio } = picture;
  const columns = sampling(range.columnStart, range.columnEnd, geometry.pitchX * ratio);
  const rows = sampling(range.rowStart, range.rowEnd, geometry.pitchY * ratio);
  if (!columns.count || !rows.count) return;
  const image = new ImageData(columns.count, rows.count);
  fillImage(new Uint32Array(image.data.buffer), picture, rows, columns);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns.count, rows.count];
  canvas.getContext("2d").putImageData(image, 0, 0);
  const [x, y] = [columnEdge(picture, range.columnStart), rowEdge(picture, range.rowStart)];
  context.imageSmoothingEnabled = false;
  context.drawImage(
    canvas,
    x,
    y,
    columnEdge(picture, range.columnEnd) - x,
    rowEdge(picture, range.rowEnd) - y,
  );
}

/** Which cells each pixel of one axis stands for. */
function sampling(start, end, devicePitch) {
  const cells = end - start;
  const count = devicePitch >= 1 ? cells : Math.max(Math.round(cells * devicePitch), Math.min(cells, 1));
  return { count, from: (pixel) => start + Math.floor((pixel * cells) / count) };
}

function fillImage(words, picture, rows, columns) {
  const { model, theme } = picture;
  const missing = theme.missing.map((colour) => packedColours([...channels(colour)])[0]);
  const starts = Array.from({ length: columns.count + 1 }, (_, pixel) => columns.from(pixel));
  let word = 0;
  for (let y = 0; y < rows.count; y++) {
    const [top, bottom] = [rows.from(y), rows.from(y + 1)];
    for (let x = 0; x < columns.count; x++) {
      const entry = strongest(model, top, bottom, starts[x], starts[x + 1]);
      words[word++] = entry === NO_VALUE ? missing[(x + y) & 1] : theme.words[entry];
    }
  }
}

/** The colour entry furthest from "nothing" in a block, so that no single strong cell vanishes when zoomed out. */
function strongest(model, top, bottom, left, right) {
  const rest = model.scale.kind === "diverging" ? CENTRE : 0;
  let best = NO_VALUE;
  let distance = -1;
  for (let row = top; row < bottom; row++) {
    const offset = row * model.columnCount;
    for (let column = left; column < right; column++) {
      const entry = model.colourIndex(model.values[offset + column]);
      if (entry !== NO_VALUE && Math.abs(entry - rest) > distance) {
        best = entry;
        distance = Math.abs(entry - rest);
      }
    }
  }
  return best;
}

function paintRowLabels(context, picture, range) {
  const { model, geometry, theme, measure } = picture;
  const { size, every } = geometry.rows;
  context.font = fontOf(theme, size);
  context.fillStyle = theme.ink;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let row = range.rowStart; row < range.rowEnd; row++) {
    const label = model.rowLabels[row];
    if (!isShown(label, row, every)) continue;
    const shown = ellipsised(label, geometry.left - GAP - 2, size, measure);
    context.fillText(shown, geometry.left - GAP, rowLabelMiddle(picture, row) + 0.5);
  }
}

function rowMiddle(picture, row) {
  return (rowEdge(picture, row) + rowEdge(picture, row + 1) - gapOf(picture.geometry)) / 2;
}

/** Of rows finer than their label, the first one's label is moved in rather than cut. */
function rowLabelMiddle(picture, row) {
  const { pitchY, top } = picture.geometry;
  return pitchY < GAPPED_PITCH ? Math.max(rowMiddle(picture, row), top + 6) : rowMiddle(picture, row);
}

function columnLabelMiddle(picture, column) {
  const { pitchX, left, columns } = picture.geometry;
  const middle = columnMiddle(picture, column);
  return pitchX < GAPPED_PITCH && columns.angle ? Math.max(middle, left + 6) : middle;
}

function columnMiddle(picture, column) {
  return (columnEdge(picture, column) + columnEdge(picture, column + 1) - gapOf(picture.geometry)) / 2;
}

function paintColumnLabels(context, picture, range) {
  const { model, geometry, view, theme } = picture;
  const { every, size } = geometry.columns;
  // Slanted labels of columns scrolled out on the left still reach into view.
  const before = geometry.columns.angle === 45 ? Math.ceil(COLUMN_LABEL_LIMIT / geometry.pitchX) : 1;
  const area = { x: geometry.left - 1, y: 0, width: view.width, height: geometry.top };
  clipped(context, columnLabelArea(geometry, area), () => {
    context.font = fontOf(theme, size);
    context.fillStyle = theme.ink;
    for (let column = Math.max(range.columnStart - before, 0); column < range.columnEnd; column++) {
      const label = model.columnLabels[column];
      if (isShown(label, column, every)) paintColumnLabel(context, picture, column, 400);
    }
  });
}

/** Numbers under the first column are centred on it, so they may reach a little into the corner. */
function columnLabelArea(geometry, area) {
  const reach = geometry.columns.angle === 0 ? Math.min(12, geometry.left) : 0;
  return { ...area, x: area.x - reach, width: area.width + reach };
}

/** Calls `paint` with the origin where a column's label starts and the x axis along its text. */
function atColumnLabel(context, picture, column, paint) {
  const { geometry } = picture;
  const angle = geometry.columns.angle;
  context.save();
  // A slanted tag reaches furthest below its own start.
  context.translate(columnLabelMiddle(picture, column), geometry.top - { 0: 8, 45: 11, 90: 7 }[angle]);
  if (angle) context.rotate((-angle * Math.PI) / 180);
  context.textBaseline = angle ? "middle" : "alphabetic";
  context.textAlign = angle ? "left" : "center";
  paint();
  context.restore();
}

function paintColumnLabel(context, picture, column, weight) {
  const { model, geometry, measure } = picture;
  const { size, limit } = geometry.columns;
  const shown = ellipsised(model.columnLabels[column], limit, size, measure, weight);
  atColumnLabel(context, picture, column, () => context.fillText(shown, 0, 0));
}

function paintAxisNames(context, picture) {
  const { model, geometry, theme, measure } = picture;
  const limit = geometry.left - GAP;
  context.font = fontOf(theme, 11, 600);
  context.fillStyle = theme.muted;
  context.textAlign = "right";
  context.textBaseline = "alphabetic";
  const at = geometry.left - GAP;
  context.fillText(ellipsised(columnAxisText(model), limit, 11, measure, 600), at, geometry.top - GAP - 15);
  context.fillText(ellipsised(rowAxisText(model), limit, 11, measure, 600), at, geometry.top - GAP);
}

/** Crosshair on the cell under pointer or cursor, and the outline of the pinned one. */
function paintMarks(context, picture, { active, pinned }) {
  const { view, geometry, theme } = picture;
  context.clearRect(0, 0, view.width, view.height);
  clipped(context, cellArea(geometry, view), () => {
    if (active) paintBands(context, picture, active);
    if (pinned) paintOutline(context, picture, pinned, theme.accent, 3);
    if (active && active.row !== null && active.column !== null) {
      paintOutline(context, picture, active, theme.ink, 2);
    }
  });
  for (const cell of [pinned, active]) {
    if (cell) paintHighlightedLabels(context, picture, cell, cell === active);
  }
}

function paintBands(context, picture, cell) {
  const { model, theme } = picture;
  context.strokeStyle = theme.ink;
  context.globalAlpha = 0.45;
  context.lineWidth = 1;
  const right = columnEdge(picture, model.columnCount);
  const bottom = rowEdge(picture, model.rowCount);
  // Of a band thinner than its outline only one line is left, so that the cells beside it stay visible.
  const thickness = (start, end) => (end - start < 4 ? 0 : end - start);
  if (cell.row !== null) {
    const [top, end] = [rowEdge(picture, cell.row), rowEdge(picture, cell.row + 1)];
    const left = columnEdge(picture, 0);
    paintBand(context, left - 0.5, top - 0.5, right - left, thickness(top, end));
  }
  if (cell.column !== null) {
    const [left, end] = [columnEdge(picture, cell.column), columnEdge(picture, cell.column + 1)];
    const top = rowEdge(picture, 0);
    paintBand(context, left - 0.5, top - 0.5, thickness(left, end), bottom - top);
  }
  context.globalAlpha = 1;
}

function paintBand(context, x, y, width, height) {
  context.beginPath();
  if (width && height) context.rect(x, y, width, height);
  else {
    context.moveTo(x, y);
    context.lineTo(x + width, y + height);
  }
  context.stroke();
}

function paintOutline(context, picture, cell, colour, width) {
  const { theme } = picture;
  const [x, y] = [columnEdge(picture, cell.column), rowEdge(picture, cell.row)];
  const gap = gapOf(picture.geometry);
  // A cell finer than a few pixels still gets an outline that can be seen.
  const w = Math.max(columnEdge(picture, cell.column + 1) - x - gap, 3);
  const h = Math.max(rowEdge(picture, cell.row + 1) - y - gap, 3);
  context.strokeStyle = theme.background;
  context.lineWidth = width + 2;
  context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
}

function paintHighlightedLabels(context, picture, cell, active) {
  const { geometry, view, theme } = picture;
  const fill = active ? theme.ink : theme.accent;
  if (cell.row !== null) {
    clipped(context, { x: 0, y: geometry.top - 8, width: geometry.left, height: view.height }, () =>
      paintRowTag(context, picture, cell.row, fill),
    );
  }
  if (cell.column !== null) {
    clipped(context, { x: geometry.left - 12, y: 0, width: view.width, height: geometry.top }, () =>
      paintColumnTag(context, picture, cell.column, fill),
    );
  }
}

function paintRowTag(context, picture, row, fill) {
  const { model, geometry, theme, measure } = picture;
  const size = geometry.rows.size;
  const shown = ellipsised(model.rowLabels[row], geometry.left - GAP - 2, size, measure, 600);
  const width = measure(shown, size, 600);
  const y = rowLabelMiddle(picture, row);
  if (y < geometry.top - 1) return;
  const cleared = (near) => ({ x: 0, y: rowLabelMiddle(picture, near) - 9, width: geometry.left - GAP + 2, height: 18 });
  clearNeighbours(context, picture, row, 17 / geometry.pitchY, model.rowLabels, geometry.rows.every, cleared);
  paintTag(context, geometry.left - GAP - width - 4, y - 8, width + 8, 16, fill);
  context.fillStyle = theme.background;
  context.font = fontOf(theme, size, 600);
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(shown, geometry.left - GAP, y + 0.5);
}

function paintColumnTag(context, picture, column, fill) {
  const { model, geometry, theme, measure } = picture;
  const { size, limit, angle } = geometry.columns;
  const shown = ellipsised(model.columnLabels[column], limit * BOLD, size, measure, 600);
  const width = measure(shown, size, 600);
  const reach = angle === 0 ? width / 2 + limit / 2 + 8 : 17;
  const room = angle === 0 ? limit + 4 : 18;
  const cleared = (near) => ({ x: columnLabelMiddle(picture, near) - room / 2, y: 0, width: room, height: geometry.top - 2 });
  clearNeighbours(context, picture, column, reach / geometry.pitchX, model.columnLabels, geometry.columns.every, cleared);
  if (columnMiddle(picture, column) < geometry.left - 1) return;
  atColumnLabel(context, picture, column, () => {
    const x = angle ? -4 : -width / 2 - 4;
    paintTag(context, x, angle ? -8 : -12, width + 8, 16, fill);
    context.fillStyle = theme.background;
    context.font = fontOf(theme, size, 600);
    context.fillText(shown, 0, 0);
  });
}

/** Hides those of thinned labels that a tag would only half cover. */
function clearNeighbours(context, { theme }, index, span, labels, every, area) {
  if (every === 1) return;
  context.fillStyle = theme.background;
  const last = Math.min(index + Math.ceil(span), labels.length - 1);
  for (let near = Math.max(index - Math.ceil(span), 0); near <= last; near++) {
    if (Math.abs(near - index) > span || !isShown(labels[near], near, every)) continue;
    const { x, y, width, height } = area(near);
    context.fillRect(x, y, width, height);
  }
}

function paintTag(context, x, y, width, height, fill) {
  context.fillStyle = fill;
  context.beginPath();
  context.roundRect(x, y, width, height, 4);
  context.fill();
}

/** The bar of colours, each as wide as the other; ticks carry the curve. */
function paintBar(context, theme, x, y, width, height) {
  for (let entry = 0; entry < 256; entry++) {
    const [start, end] = [entry, entry + 1].map((i) => x + Math.round((i * width) / 256));
    context.fillStyle = theme.css[entry];
    context.fillRect(start, y, end - start, height);
  }
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}
