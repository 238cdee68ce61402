// The model view as a file: all heads as they are ordered, with a caption that says of what.

const SAVED_WIDTH = 900; // at least, so that a narrow window saves no tiny picture
const CAPTION_LINES = 6;

/** The picture for a file, with its caption in lines. */
function savedGrid(picture) {
  const { model, sort, measure } = picture;
  const width = Math.max(picture.geometry.width, SAVED_WIDTH);
  const geometry = gridLayout(model, width, sort, measure);
  const underlined = hasLabels(model) ? "Underlined: heads with a label" : "";
  const said = [model.caption, model.source, orderSentence(sort), blockSentence(model), underlined];
  const caption = said.filter(Boolean).join(". ");
  const wanted = captionLines({ model: { caption }, measure }, geometry.width);
  const lines = wanted.slice(0, CAPTION_LINES);
  if (wanted.length > lines.length) lines[CAPTION_LINES - 1] += " …";
  const top = MARGIN + lines.length * 20 + 14;
  return {
    ...picture,
    geometry,
    caption,
    lines,
    top,
    width: Math.max(geometry.width, LEGEND_WIDTH) + 2 * MARGIN,
    height: top + geometry.height + LEGEND_HEIGHT + MARGIN,
  };
}

async function saveGridPng(picture) {
  const whole = savedGrid(picture);
  const { width, height, theme, top, geometry } = whole;
  const ratio = width * height * PNG_RATIO ** 2 <= PNG_PIXELS ? PNG_RATIO : 1;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = theme.background;
  context.fillRect(0, 0, width, height);
  paintCaption(context, theme, whole.lines);
  paintGrid(context, { ...whole, ratio }, { x: MARGIN, y: top });
  paintLegend(context, whole, MARGIN, top + geometry.height + 18);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  offer(blob, `${picture.model.fileName}.png`);
}

function saveGridSvg(picture) {
  const text = new XMLSerializer().serializeToString(gridSvg(savedGrid(picture)));
  offer(new Blob([text], { type: "image/svg+xml" }), `${picture.model.fileName}.svg`);
}

function gridSvg(whole) {
  const { width, height, theme, measure, lines, top, geometry, rows } = whole;
  const svg = svgNode("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": theme.font });
  svg.append(svgNode("title", {}, whole.caption), svgNode("rect", { width, height, fill: theme.background }));
  lines.forEach((line, i) => {
    const more = { "font-weight": 600, ...asWideAs(measure(line, 14, 600)) };
    svg.append(svgText(line, MARGIN, MARGIN + 14 + i * 20, 14, theme.ink, more));
  });
  const body = svgNode("g", { transform: `translate(${MARGIN} ${top})` });
  rows.forEach(({ layer, heads }, row) =>
    heads.forEach((head, column) => body.append(svgThumbnail(whole, { layer, head }, cornerOf(geometry, { row, column })))),
  );
  for (const { text, x, y, size, anchor, muted, weight } of gridTexts(whole)) {
    const more = { "text-anchor": anchor, "font-weight": weight };
    body.append(svgText(text, x, y, size, muted ? theme.muted : theme.ink, more));
  }
  svg.append(body, svgLegend(whole, MARGIN, top + geometry.height + 18));
  return svg;
}

/** A thumbnail in SVG is an image of one pixel a cell: as rectangles all heads would be a file of many megabytes. */
function svgThumbnail({ model, theme, sort, geometry: { side } }, which, { x, y }) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = model.side;
  canvas.getContext("2d").putImageData(headImage(model, theme, which, model.side), 0, 0);
  const place = { x, y, width: side, height: side };
  const image = svgNode("image", { ...place, href: canvas.toDataURL(), style: "image-rendering: pixelated" });
  image.append(svgNode("title", {}, headSentence(model, sort, which)));
  const group = svgNode("g", {});
  group.append(image, svgNode("rect", { ...place, fill: "none", stroke: theme.line }));
  if (model.labels[which.layer][which.head]) {
    group.append(svgNode("rect", { x, y: y + side + 2, width: markWidth(side), height: 2, fill: theme.accent }));
  }
  return group;
}
