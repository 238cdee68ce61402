// How the model view looks. Thumbnails are images at the screen's own resolution, so that their edges stay sharp.

/** One head as an image of `pixels` a side; where cells are finer than pixels, a pixel shows their strongest. */
function headImage(model, theme, { layer, head }, pixels) {
  const { side, entries, headCount } = model;
  const image = new ImageData(pixels, pixels);
  const words = new Uint32Array(image.data.buffer);
  const first = (layer * headCount + head) * side * side;
  const starts = Array.from({ length: pixels + 1 }, (_, pixel) => Math.floor((pixel * side) / pixels));
  for (let y = 0; y < pixels; y++) {
    const row = y * pixels;
    if (y > 0 && starts[y] === starts[y - 1]) {
      words.copyWithin(row, row - pixels, row); // the same cells as the line above
      continue;
    }
    for (let x = 0; x < pixels; x++) {
      words[row + x] = theme.words[strongestEntry(entries, first, side, starts, x, y)];
    }
  }
  return image;
}

function strongestEntry(entries, first, side, starts, x, y) {
  let best = 0;
  const [bottom, right] = [Math.max(starts[y + 1], starts[y] + 1), Math.max(starts[x + 1], starts[x] + 1)];
  for (let row = starts[y]; row < bottom; row++) {
    for (let column = starts[x]; column < right; column++) {
      const entry = entries[first + row * side + column];
      if (entry > best) best = entry;
    }
  }
  return best;
}

/** All thumbnails with their numbers, `at` an offset in CSS pixels. Images ignore a context's transform. */
function paintGrid(context, picture, at = { x: 0, y: 0 }) {
  const { model, theme, rows, geometry, ratio } = picture;
  const device = (length) => Math.round(length * ratio);
  const pixels = device(geometry.side);
  context.lineWidth = 1;
  rows.forEach((line, row) =>
    line.heads.forEach((head, column) => {
      const { x, y } = cornerOf(geometry, { row, column });
      const image = headImage(model, theme, { layer: line.layer, head }, pixels);
      context.putImageData(image, device(at.x + x), device(at.y + y));
      context.strokeStyle = theme.line;
      context.strokeRect(at.x + x - 0.5, at.y + y - 0.5, geometry.side + 1, geometry.side + 1);
      if (model.labels[line.layer][head]) paintLabelled(context, theme, at.x + x, at.y + y, geometry.side);
    }),
  );
  context.save();
  context.translate(at.x, at.y);
  paintNumbers(context, picture);
  context.restore();
}

/** The mark of a head that has a label: a short line beneath it. */
function paintLabelled(context, theme, x, y, side) {
  context.fillStyle = theme.accent;
  context.fillRect(x, y + side + 2, markWidth(side), 2);
}

function markWidth(side) {
  return Math.max(8, Math.round(side / 4));
}

function paintNumbers(context, { theme, geometry, rows, sort, model }) {
  for (const { text, x, y, size, anchor, muted, weight } of gridTexts({ geometry, rows, sort, model })) {
    context.font = fontOf(theme, size, weight);
    context.fillStyle = muted ? theme.muted : theme.ink;
    context.textAlign = { start: "left", middle: "center", end: "right" }[anchor];
    context.textBaseline = "alphabetic";
    context.fillText(text, x, y);
  }
}

/** Every number and axis name of the picture, with its place; for the canvas and for SVG. */
function gridTexts({ geometry, rows, sort, model }) {
  const { left, top, own, side } = geometry;
  const axis = { size: 11, anchor: "end", muted: true, weight: 600 };
  const texts = [{ ...axis, text: "layer ↓", x: left - GAP, y: top - 8 }];
  if (!numbersItself(sort)) {
    texts.push({ ...axis, text: "head →", x: left - GAP, y: top - 23 });
    for (let head = 0; head < model.headCount; head++) {
      const x = cornerOf(geometry, { row: 0, column: head }).x + side / 2;
      texts.push({ text: String(head + 1), x, y: top - 8, size: 12, anchor: "middle", weight: 400 });
    }
  }
  rows.forEach(({ layer, heads }, row) => {
    const { y } = cornerOf(geometry, { row, column: 0 });
    texts.push({ text: String(layer + 1), x: left - GAP, y: y + side / 2 + 4, size: 12, anchor: "end", weight: 400 });
    if (!own) return;
    heads.forEach((head, column) => {
      const { x } = cornerOf(geometry, { row, column });
      texts.push({ text: String(head + 1), x, y: y - 4, size: 11, anchor: "start", muted: true, weight: 400 });
    });
  });
  return texts;
}
