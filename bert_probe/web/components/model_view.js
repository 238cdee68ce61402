// The component: one view per mounted element, updated on every data or theme change.

const memory = new Map(); // key of the component → order and cursor, so that a remount does not lose them
const views = new WeakMap();

class ModelView {
  constructor(root) {
    this.root = root;
    this.parts = buildGridParts(root);
    this.generation = 0;
    this.hovered = null;
    this.resized = new ResizeObserver(() => this.fitToWidth());
    this.redraw = () => this.fitToWidth(true);
    this.follow = () => this.placePreview();
    this.handle();
  }

  /** Called on every rerun that changed data or theme; returns the clean-up for exactly this call. */
  update({ data, setTriggerValue }) {
    const generation = ++this.generation;
    this.open = (which) => setTriggerValue("opened", which);
    if (data !== this.data) this.take(data);
    this.theme = readTheme(this.root, this.model);
    this.measure = textMeasure(this.theme);
    this.describe();
    this.connect();
    this.fitToWidth(true);
    this.awaitFont(generation);
    // Streamlit may clean up after a superseded call once a newer one has run: only the newest may let go.
    return () => generation === this.generation && this.disconnect();
  }

  take(data) {
    this.data = data;
    this.model = unpackThumbnails(data);
    const known = memory.get(this.model.key);
    const { layerCount, headCount, measures } = this.model;
    this.sort = known && (known.sort.measure === null || measures.includes(known.sort.measure)) ? known.sort : UNSORTED;
    const fits = known?.cursor && known.cursor.layer < layerCount && known.cursor.head < headCount;
    this.cursor = fits ? known.cursor : null;
    this.hovered = null;
    const options = measures.map((name) => element("option", { value: name }, name));
    this.parts.measure.replaceChildren(element("option", { value: "" }, "as in the model"), ...options);
    this.rows = arrangedRows(this.model, this.sort);
  }

  remember() {
    memory.set(this.model.key, { sort: this.sort, cursor: this.cursor });
  }

  connect() {
    this.resized.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener again adds nothing
    document.addEventListener("scroll", this.follow, true); // Streamlit scrolls a part of the page
  }

  disconnect() {
    this.resized.disconnect();
    window.removeEventListener("resize", this.redraw);
    document.removeEventListener("scroll", this.follow, true);
  }

  /** Widths measured before the page's font had arrived are wrong. */
  async awaitFont(generation) {
    const font = fontOf(this.theme, 12);
    if (document.fonts.check(font)) return;
    await document.fonts.load(font);
    if (generation !== this.generation) return;
    this.measure = textMeasure(this.theme);
    this.fitToWidth(true);
  }

  describe() {
    const { model, parts } = this;
    const size = `${model.layerCount} layers, ${model.headCount} heads each.`;
    parts.grid.setAttribute("aria-label", `${model.caption}. ${size}`);
    parts.legendText.textContent = legendSentence(model);
    parts.blocks.textContent = blockSentence(model);
    parts.labelled.hidden = !hasLabels(model);
    parts.ticks.replaceChildren(...legendTicks(model.scale).map((tick) => this.tick(tick)));
    this.setTools();
  }

  tick(value) {
    const place = placeOnBar(this.model.scale, value);
    const node = element("span", {}, tickText(this.model, value));
    node.style.left = `${place * 100}%`;
    node.className = place === 0 ? "first" : place === 1 ? "last" : "";
    return node;
  }

  // Size and drawing

  fitToWidth(force = false) {
    const width = this.root.clientWidth;
    if (!width || (!force && width === this.width)) return; // hidden, e.g. in a tab that is not open
    this.width = width;
    this.paint();
  }

  paint() {
    const { grid } = this.parts;
    this.ratio = window.devicePixelRatio || 1;
    this.geometry = gridLayout(this.model, this.width, this.sort, this.measure);
    const { width, height } = this.geometry;
    sizeCanvas(grid, width, height, this.ratio);
    const context = this.contextOf(grid);
    context.fillStyle = this.theme.background;
    context.fillRect(0, 0, width, height);
    paintGrid(context, this.picture);
    this.paintLegend();
    this.mark();
  }

  get picture() {
    const { model, theme, measure, rows, sort, geometry, ratio } = this;
    return { model, theme, measure, rows, sort, geometry, ratio };
  }

  contextOf(canvas) {
    return scaledContext(canvas, this.ratio);
  }

  paintLegend() {
    const { bar } = this.parts;
    const [width, height] = [bar.clientWidth, bar.clientHeight];
    bar.width = Math.round(width * this.ratio);
    bar.height = Math.round(height * this.ratio);
    paintBar(this.contextOf(bar), this.theme, 0, 0, width, height);
  }

  setTools() {
    const { measure, byHead, byLayer } = this.parts;
    measure.value = this.sort.measure ?? "";
    byHead.setAttribute("aria-pressed", String(this.sort.measure !== null && this.sort.heads));
    byLayer.setAttribute("aria-pressed", String(this.sort.measure !== null && this.sort.layers));
    byHead.disabled = byLayer.disabled = this.sort.measure === null;
  }

  // The head under the pointer, or else under the cursor

  get active() {
    return this.hovered ?? (this.focused ? this.cursor : null);
  }

  mark() {
    const { outline, readout, preview } = this.parts;
    const { active, geometry, model, sort } = this;
    outline.hidden = !active;
    readout.replaceChildren(...(active ? [headSentence(model, sort, active)] : this.idle()));
    if (!active) return preview.root.togglePopover(false);
    const { x, y } = cornerOf(geometry, placeOf(this.rows, active));
    Object.assign(outline.style, { left: `${x}px`, top: `${y}px`, width: `${geometry.side}px`, height: `${geometry.side}px` });
    return this.paintPreview(active);
  }

  idle() {
    return [this.model.caption, element("span", { class: "hint" }, " · point at a head to see it larger, click to open it")];
  }

  paintPreview(which) {
    const { preview } = this.parts;
    preview.title.textContent = headName(which);
    preview.detail.textContent = headDetail(this.model, this.sort, which);
    sizeCanvas(preview.canvas, PREVIEW_SIDE, PREVIEW_SIDE, this.ratio);
    const image = headImage(this.model, this.theme, which, preview.canvas.width);
    preview.canvas.getContext("2d").putImageData(image, 0, 0);
    preview.root.togglePopover(true);
    this.placePreview();
  }

  placePreview() {
    const { outline, preview } = this.parts;
    if (!preview.root.matches(":popover-open")) return undefined;
    const place = previewPlace(outline.getBoundingClientRect(), preview.root.getBoundingClientRect());
    if (!place) return preview.root.togglePopover(false);
    return Object.assign(preview.root.style, { left: `${place.x}px`, top: `${place.y}px` });
  }

  say(text) {
    this.parts.live.textContent = text;
  }

  // What a reader does

  handle() {
    const { grid, measure, byHead, byLayer, png, svg } = this.parts;
    grid.onpointermove = (event) => event.pointerType !== "touch" && this.hover(this.headOf(event));
    grid.onpointerleave = () => this.hover(null);
    grid.onclick = (event) => this.choose(this.headOf(event));
    grid.onkeydown = (event) => this.press(event);
    grid.onfocus = () => this.focusChanged(grid.matches(":focus-visible"));
    grid.onblur = () => this.focusChanged(false);
    measure.onchange = () => this.setSort({ ...this.sort, measure: measure.value || null });
    byHead.onclick = () => this.setSort({ ...this.sort, heads: !this.sort.heads });
    byLayer.onclick = () => this.setSort({ ...this.sort, layers: !this.sort.layers });
    png.onclick = () => saveGridPng(this.picture);
    svg.onclick = () => saveGridSvg(this.picture);
  }

  headOf(event) {
    const place = placeAt(this.model, this.geometry, event.offsetX, event.offsetY);
    return place && headAt(this.rows, place);
  }

  hover(which) {
    if (sameHead(which, this.hovered)) return;
    this.hovered = which;
    this.parts.grid.style.cursor = which ? "pointer" : "default";
    this.mark();
  }

  choose(which) {
    if (!which) return;
    this.cursor = which;
    this.remember();
    this.open(which);
  }

  setSort(sort) {
    this.sort = sort;
    this.rows = arrangedRows(this.model, sort);
    this.remember();
    this.setTools();
    this.paint();
    this.say(orderSentence(sort) || "Layers and heads as in the model");
  }

  focusChanged(focused) {
    this.focused = focused;
    if (focused) this.cursor ??= headAt(this.rows, { row: 0, column: 0 });
    this.mark();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = this.cursor ?? headAt(this.rows, { row: 0, column: 0 });
    const target = this.destination(event.key, placeOf(this.rows, cursor));
    if (target) this.moveTo(headAt(this.rows, target));
    else if (event.key === "Enter" || event.key === " ") this.choose(cursor);
    else if (event.key === "Escape") this.focusChanged(false);
    else return;
    event.preventDefault();
  }

  destination(key, { row, column }) {
    const [lastRow, lastColumn] = [this.model.layerCount - 1, this.model.headCount - 1];
    const steps = {
      ArrowLeft: [row, Math.max(column - 1, 0)],
      ArrowRight: [row, Math.min(column + 1, lastColumn)],
      ArrowUp: [Math.max(row - 1, 0), column],
      ArrowDown: [Math.min(row + 1, lastRow), column],
      Home: [row, 0],
      End: [row, lastColumn],
      PageUp: [0, column],
      PageDown: [lastRow, column],
    };
    return Object.hasOwn(steps, key) ? { row: steps[key][0], column: steps[key][1] } : null;
  }

  moveTo(which) {
    this.cursor = which;
    this.hovered = null;
    this.focused = true;
    this.remember();
    this.mark();
    this.parts.outline.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
    this.placePreview();
    this.say(headSentence(this.model, this.sort, which));
  }
}

function sizeCanvas(canvas, width, height, ratio) {
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

export default function (component) {
  const root = component.parentElement.querySelector(".model-view");
  if (!views.has(root)) views.set(root, new ModelView(root));
  return views.get(root).update(component);
}
