// Pictures as files: the whole matrix with its caption, axis names and legend.

const PNG_RATIO = 2;
const PNG_PIXELS = 36e6; // what browsers of ordinary machines still encode in a moment
const PNG_SIDE = 12000;
const SVG_CELLS = 40000;
const MARGIN = 20;
const CAPTION_HEIGHT = 34;
const LEGEND_HEIGHT = 62;
const LEGEND_WIDTH = 300;
const SVG = "http://www.w3.org/2000/svg";

/** A picture of everything, at the largest of a few pitches that makes a reasonable file; null if none does. */
function wholePicture(picture) {
  const { model, measure, theme, geometry } = picture;
  const wanted = Math.max(geometry.pitchX, model.square ? READABLE_PITCH : geometry.pitchX);
  for (const [pitch, ratio] of [wanted, geometry.pitchX, 8, 4, 2, 1].flatMap((p) => [[p, PNG_RATIO], [p, 1]])) {
    const whole = atPitch(model, measure, geometry, pitch);
    const view = { x: 0, y: 0, width: Math.ceil(whole.contentWidth), height: Math.ceil(whole.contentHeight) };
    const [width, height] = [view.width + 2 * MARGIN, view.height + CAPTION_HEIGHT + LEGEND_HEIGHT + 2 * MARGIN];
    const fits = Math.max(width, height) * ratio <= PNG_SIDE && width * height * ratio ** 2 <= PNG_PIXELS;
    if (fits && pitch <= wanted) return { model, measure, theme, geometry: whole, view, ratio };
  }
  return null;
}

/** The geometry of the whole matrix at a pitch, as zooming to it would give. */
function atPitch(model, measure, geometry, pitch) {
  const factor = pitch / geometry.automatic.x;
  const box = { width: geometry.left + model.columnCount * geometry.automatic.x, height: 600 };
  const free = layout(model, box, { mode: "auto", factor: 1 }, measure);
  const zoom = { mode: "free", factor: (factor * geometry.automatic.x) / free.automatic.x };
  return layout(model, box, zoom, measure);
}

async function savePng(picture) {
  const whole = wholePicture(picture) ?? { ...picture, ratio: PNG_RATIO };
  const width = Math.max(whole.view.width, LEGEND_WIDTH) + 2 * MARGIN;
  const lines = captionLines(whole, width - 2 * MARGIN);
  const top = MARGIN + lines.length * 20 + 14;
  const height = top + whole.view.height + LEGEND_HEIGHT + MARGIN;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * whole.ratio), Math.round(height * whole.ratio)];
  const context = canvas.getContext("2d");
  context.scale(whole.ratio, whole.ratio);
  context.fillStyle = whole.theme.background;
  context.fillRect(0, 0, width, height);
  paintCaption(context, whole.theme, lines);
  context.save();
  context.translate(MARGIN, top);
  clipped(context, { x: 0, y: 0, width: whole.view.width, height: whole.view.height }, () => paintPicture(context, whole));
  context.restore();
  paintLegend(context, whole, MARGIN, top + whole.view.height + 18);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  offer(blob, `${picture.model.fileName}.png`);
}

function captionLines({ model, measure }, width) {
  return wrapped(model.caption, width, 14, measure);
}

/** A bold text in lines of a width; words are kept whole where they can be. */
function wrapped(text, width, size, measure) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && measure(longer, size, 600) > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => ellipsised(line, width, size, measure, 600));
}

function paintCaption(context, theme, lines) {
  context.font = fontOf(theme, 14, 600);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  lines.forEach((line, i) => context.fillText(line, MARGIN, MARGIN + 14 + i * 20));
}

function paintLegend(context, { model, theme }, x, y) {
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.font = fontOf(theme, 12);
  context.fillStyle = theme.muted;
  context.fillText(savedLegend(model), x, y);
  paintBar(context, theme, x, y + 8, LEGEND_WIDTH, 10);
  context.font = fontOf(theme, 11);
  context.fillStyle = theme.muted;
  for (const tick of legendTicks(model.scale)) {
    const place = placeOnBar(model.scale, tick);
    context.textAlign = place === 0 ? "left" : place === 1 ? "right" : "center";
    context.fillText(tickText(model, tick), x + place * LEGEND_WIDTH, y + 32);
  }
}

function savedLegend(model) {
  return model.missing ? `${legendSentence(model)}; hatched: no value` : legendSentence(model);
}

/** A sentence that says why there will be no SVG, or null. */
function svgRefusal(model) {
  const cells = model.rowCount * model.columnCount;
  if (cells <= SVG_CELLS) return null;
  const count = (number) => number.toLocaleString("en");
  return `This matrix has ${count(cells)} cells; an SVG here holds at most ${count(SVG_CELLS)}. Save it as PNG instead.`;
}

function saveSvg(picture) {
  const { model, measure, geometry } = picture;
  const whole = atPitch(model, measure, geometry, Math.max(geometry.pitchX, model.square ? READABLE_PITCH : 2));
  const view = { x: 0, y: 0, width: Math.ceil(whole.contentWidth), height: Math.ceil(whole.contentHeight) };
  const svg = drawnSvg({ ...picture, geometry: whole, view, ratio: 1 });
  const text = new XMLSerializer().serializeToString(svg);
  offer(new Blob([text], { type: "image/svg+xml" }), `${model.fileName}.svg`);
}

function drawnSvg(picture) {
  const { view, theme, model } = picture;
  const width = Math.max(view.width, LEGEND_WIDTH) + 2 * MARGIN;
  const lines = captionLines(picture, width - 2 * MARGIN);
  const top = MARGIN + lines.length * 20 + 14;
  const height = top + view.height + LEGEND_HEIGHT + MARGIN;
  const svg = svgNode("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": theme.font });
  svg.append(svgNode("title", {}, model.caption));
  svg.append(svgNode("rect", { width, height, fill: theme.background }), svgHatching(theme));
  lines.forEach((line, i) => svg.append(svgText(line, MARGIN, MARGIN + 14 + i * 20, 14, theme.ink, { "font-weight": 600 })));
  const body = svgNode("g", { transform: `translate(${MARGIN} ${top})` });
  body.append(svgCells(picture), svgRowLabels(picture), svgColumnLabels(picture), svgAxisNames(picture));
  svg.append(body, svgLegend(picture, MARGIN, top + view.height + 18));
  return svg;
}

function svgNode(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function svgText(text, x, y, size, fill, more = {}) {
  return svgNode("text", { x, y, "font-size": size, fill, ...more }, text);
}

/** The page's font may be missing where the file is opened; a label still keeps to its place. */
function asWideAs(width) {
  return width ? { textLength: Math.ceil(width), lengthAdjust: "spacingAndGlyphs" } : {};
}

/** One rectangle a cell; neighbours of the same value share one where cells touch. */
function svgCells(picture) {
  const { model, theme } = picture;
  const group = svgNode("g", { "shape-rendering": "crispEdges" });
  const numbers = svgNode("g", { "text-anchor": "middle", "font-size": picture.geometry.pitchX >= 44 ? 12 : 11 });
  const number = numberStyle(picture);
  for (let row = 0; row < model.rowCount; row++) {
    for (let start = 0; start < model.columnCount; ) {
      const end = number || gapOf(picture.geometry) ? start + 1 : endOfRun(model, row, start);
      const value = valueAt(model, row, start);
      group.append(svgCell(picture, row, start, end, theme, model.colourIndex(value)));
      if (number && value === value) numbers.append(svgNumber(picture, row, start, value));
      start = end;
    }
  }
  const both = svgNode("g", {});
  both.append(svgFrame(picture), group, numbers);
  return both;
}

function endOfRun(model, row, start) {
  let end = start + 1;
  while (end < model.columnCount && Object.is(valueAt(model, row, end), valueAt(model, row, start))) end++;
  return end;
}

function svgCell(picture, row, start, end, theme, entry) {
  const gap = gapOf(picture.geometry);
  const [x, y] = [columnEdge(picture, start), rowEdge(picture, row)];
  const width = columnEdge(picture, end) - x - gap;
  const height = rowEdge(picture, row + 1) - y - gap;
  const fill = entry === NO_VALUE ? "url(#no-value)" : theme.css[entry];
  const cell = svgNode("rect", { x, y, width, height, fill });
  if (entry === NO_VALUE) cell.append(svgNode("title", {}, "no value"));
  return cell;
}

function svgHatching(theme) {
  const pattern = svgNode("pattern", {
    id: "no-value",
    width: 5,
    height: 5,
    patternUnits: "userSpaceOnUse",
    patternTransform: "rotate(45)",
  });
  pattern.append(
    svgNode("rect", { width: 5, height: 5, fill: theme.missing[0] }),
    svgNode("rect", { width: 1, height: 5, fill: theme.missing[1] }),
  );
  return pattern;
}

function svgFrame(picture) {
  const { model, theme } = picture;
  const [x, y] = [columnEdge(picture, 0) - 0.5, rowEdge(picture, 0) - 0.5];
  const gap = gapOf(picture.geometry);
  const width = columnEdge(picture, model.columnCount) - x - gap + 0.5;
  const height = rowEdge(picture, model.rowCount) - y - gap + 0.5;
  return svgNode("rect", { x, y, width, height, fill: "none", stroke: theme.line });
}

function svgNumber(picture, row, column, value) {
  const ink = picture.theme.inks[picture.model.colourIndex(value)];
  return svgNode(
    "text",
    { x: columnMiddle(picture, column), y: rowMiddle(picture, row) + 4, fill: ink },
    formatted(value, 2),
  );
}

function svgRowLabels(picture) {
  const { model, geometry, theme, measure } = picture;
  const { size, every } = geometry.rows;
  const group = svgNode("g", { "text-anchor": "end" });
  model.rowLabels.forEach((label, row) => {
    if (!isShown(label, row, every)) return;
    const shown = ellipsised(label, geometry.left - GAP - 2, size, measure);
    const sized = asWideAs(measure(shown, size));
    group.append(svgText(shown, geometry.left - GAP, rowMiddle(picture, row) + size / 3, size, theme.ink, sized));
  });
  return group;
}

function svgColumnLabels(picture) {
  const { model, geometry, theme, measure } = picture;
  const { size, every, limit, angle } = geometry.columns;
  const group = svgNode("g", { "text-anchor": angle ? "start" : "middle" });
  model.columnLabels.forEach((label, column) => {
    if (!isShown(label, column, every)) return;
    const [x, y] = [columnMiddle(picture, column), geometry.top - GAP];
    const shown = ellipsised(label, limit, size, measure);
    const turned = angle ? { transform: `translate(${x} ${y}) rotate(${-angle})` } : {};
    Object.assign(turned, asWideAs(measure(shown, size)));
    group.append(svgText(shown, angle ? 0 : x, angle ? size / 3 : y, size, theme.ink, turned));
  });
  return group;
}

function svgAxisNames(picture) {
  const { model, geometry, theme } = picture;
  const group = svgNode("g", { "text-anchor": "end", "font-weight": 600 });
  group.append(
    svgText(columnAxisText(model), geometry.left - GAP, geometry.top - GAP - 15, 11, theme.muted),
    svgText(rowAxisText(model), geometry.left - GAP, geometry.top - GAP, 11, theme.muted),
  );
  return group;
}

function svgLegend({ model, theme }, x, y) {
  const group = svgNode("g", {});
  group.append(svgText(savedLegend(model), x, y, 12, theme.muted));
  const bar = svgNode("g", { "shape-rendering": "crispEdges" });
  theme.css.forEach((fill, i) => {
    const start = x + (i * LEGEND_WIDTH) / 256;
    bar.append(svgNode("rect", { x: start, y: y + 8, width: LEGEND_WIDTH / 256, height: 10, fill }));
  });
  group.append(bar, svgNode("rect", { x, y: y + 8, width: LEGEND_WIDTH, height: 10, fill: "none", stroke: theme.line }));
  for (const tick of legendTicks(model.scale)) {
    const place = placeOnBar(model.scale, tick);
    const anchor = place === 0 ? "start" : place === 1 ? "end" : "middle";
    const at = x + place * LEGEND_WIDTH;
    group.append(svgText(tickText(model, tick), at, y + 32, 11, theme.muted, { "text-anchor": anchor }));
  }
  return group;
}

function offer(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  // Later than the click, because the browser reads the address after this function has returned.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
