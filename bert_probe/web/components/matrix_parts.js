// The component's elements and the sentences in them. User text only ever arrives as text, never as markup.

/** An element with attributes and children; a string among them becomes text. */
function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function buildParts(root) {
  const parts = {
    readout: element("p", { class: "readout" }),
    pinnedLine: element("p", { class: "pinned" }),
    out: button("Zoom out", "−"),
    fit: button("Fit: show every cell at once", "Fit"),
    in: button("Zoom in", "+"),
    png: button("Save the picture as PNG", "PNG"),
    svg: button("Save the picture as SVG", "SVG"),
    base: element("canvas", { "aria-hidden": "true" }),
    stage: element("canvas", { class: "marks", tabindex: "0", role: "application" }),
    bar: element("canvas", { "aria-hidden": "true" }),
    ticks: element("div", { class: "ticks" }),
    legendText: element("p", { class: "legend-text" }),
    live: element("p", { class: "unseen", "aria-live": "polite" }),
    help: element(
      "p",
      { class: "unseen", id: "help" },
      "Arrow keys move between cells; Home, End, Page up and Page down go further. Enter pins a cell, Escape lets go.",
    ),
  };
  parts.sticky = element("div", { class: "sticky" }, parts.base, parts.stage);
  parts.extent = element("div", { class: "extent" }, parts.sticky);
  parts.scroll = element("div", { class: "scroll" }, parts.extent);
  parts.stage.setAttribute("aria-describedby", "help");
  root.replaceChildren(
    element(
      "div",
      { class: "head" },
      element("div", { class: "lines" }, parts.readout, parts.pinnedLine),
      element(
        "div",
        { class: "tools" },
        element("div", { class: "group", role: "group", "aria-label": "Zoom" }, parts.out, parts.fit, parts.in),
        element("div", { class: "group", role: "group", "aria-label": "Save" }, parts.png, parts.svg),
      ),
    ),
    parts.scroll,
    element("div", { class: "legend" }, parts.legendText, element("div", { class: "scale" }, parts.bar, parts.ticks)),
    parts.live,
    parts.help,
  );
  return parts;
}

function button(title, text) {
  return element("button", { type: "button", title, "aria-label": title }, text);
}

/** "ground (11) → left (9): 0.6486" as nodes, so that long tokens shrink and the value never does. */
function readoutNodes(model, { row, column }) {
  const nodes = [];
  if (row !== null) nodes.push(...nameNodes(model.rowLabels[row], positionOf(model.rowPositions, row)));
  if (row !== null && column !== null) nodes.push(element("span", { class: "arrow" }, " → "));
  if (column !== null) nodes.push(...nameNodes(model.columnLabels[column], positionOf(model.columnPositions, column)));
  if (row === null || column === null) return nodes;
  const value = formatted(valueAt(model, row, column), model.decimals);
  return [...nodes, element("span", { class: "value" }, `: ${value}`)];
}

function nameNodes(label, position) {
  const name = element("span", { class: "name", title: label }, element("bdi", {}, label));
  return position === null ? [name] : [name, element("span", { class: "place" }, ` (${position})`)];
}

/** Makes both canvases as large as what is in view; the device pixels of a CSS pixel. */
function sizedCanvases({ scroll, sticky, base, stage }) {
  const [width, height] = [scroll.clientWidth, scroll.clientHeight];
  const ratio = window.devicePixelRatio || 1;
  sticky.style.width = `${width}px`;
  sticky.style.height = `${height}px`;
  for (const canvas of [base, stage]) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  return ratio;
}

/** A canvas' context whose unit is the CSS pixel. */
function scaledContext(canvas, ratio) {
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function mostHeight() {
  return Math.max(420, Math.min(window.innerHeight * 0.85, 860));
}

/** What is left of the window under a page's title and controls: a short text is drawn to fit in there. */
function heightInView() {
  return Math.max(360, window.innerHeight * 0.62);
}

function scrollbarWidth(scroll) {
  scroll.style.overflowY = "scroll";
  return scroll.offsetWidth - scroll.clientWidth;
}
