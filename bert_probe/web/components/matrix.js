// The component: one view per mounted element, updated on every data or theme change.

const memory = new Map(); // key of the component → what a reader had set, so that a remount does not lose it
const views = new WeakMap();

class MatrixView {
  constructor(root) {
    this.root = root;
    this.parts = buildParts(root);
    this.generation = 0;
    this.hovered = null;
    this.notice = null;
    this.resized = new ResizeObserver(() => this.fitToWidth());
    this.redraw = () => this.fitToWidth(true);
    this.handle();
  }

  /** Called on every rerun that changed data or theme; returns the clean-up for exactly this call. */
  update({ data, setStateValue }) {
    const generation = ++this.generation;
    this.report = (cell) => setStateValue("cell", cell && { ...cell, labels: this.model.labels });
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
    const before = this.model;
    this.data = data;
    this.model = unpack(data);
    if (before?.labels === this.model.labels) return;
    const known = memory.get(this.model.key);
    const same = known?.labels === this.model.labels;
    const alike = same || (known && known.rowCount === this.model.rowCount && known.columnCount === this.model.columnCount);
    this.zoom = alike ? known.zoom : { mode: "auto", factor: 1 };
    this.wantedScroll = alike ? known.scroll : { x: 0, y: 0 };
    this.cursor = alike ? known.cursor : null;
    const [row, column] = this.model.pinned ?? [];
    this.pinned = this.model.pinned ? { row, column } : null;
    this.hovered = null;
  }

  remember() {
    const { labels, rowCount, columnCount, key } = this.model;
    const { scrollLeft: x, scrollTop: y } = this.parts.scroll;
    memory.set(key, { labels, rowCount, columnCount, zoom: this.zoom, scroll: { x, y }, cursor: this.cursor });
  }

  connect() {
    this.resized.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener again adds nothing
  }

  disconnect() {
    this.resized.disconnect();
    window.removeEventListener("resize", this.redraw);
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
    parts.stage.setAttribute("aria-label", model.caption);
    parts.legendText.textContent = legendSentence(model);
    parts.ticks.replaceChildren(...legendTicks(model.scale).map((tick) => this.tick(tick)));
    parts.legendText.classList.toggle("has-missing", model.missing);
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
    this.arrange();
  }

  /** Lays everything out anew and keeps `anchor`, a point of the view, over the same cell. */
  arrange() {
    const { parts, model, zoom, measure } = this;
    const box = { width: this.width, height: mostHeight(), inView: heightInView() };
    const bar = scrollbarWidth(parts.scroll);
    let geometry = layout(model, box, zoom, measure);
    const tall = geometry.contentHeight > box.height;
    if (tall) geometry = layout(model, { ...box, width: box.width - bar }, zoom, measure);
    const wide = geometry.contentWidth > box.width - (tall ? bar : 0) + 1;
    this.geometry = geometry;
    parts.scroll.style.overflowX = wide ? "scroll" : "hidden";
    parts.scroll.style.overflowY = tall ? "scroll" : "hidden";
    parts.scroll.style.height = `${Math.min(geometry.contentHeight, box.height) + (wide ? bar : 0)}px`;
    parts.extent.style.width = `${Math.max(geometry.contentWidth, 1)}px`;
    parts.extent.style.height = `${geometry.contentHeight}px`;
    this.restoreScroll();
    this.ratio = sizedCanvases(this.parts);
    this.paint();
    this.setTools();
  }

  restoreScroll() {
    if (!this.wantedScroll) return;
    this.parts.scroll.scrollTo({ left: this.wantedScroll.x, top: this.wantedScroll.y, behavior: "instant" });
    this.wantedScroll = null;
  }

  get picture() {
    const { scroll } = this.parts;
    return {
      model: this.model,
      theme: this.theme,
      measure: this.measure,
      geometry: this.geometry,
      ratio: this.ratio,
      view: { x: scroll.scrollLeft, y: scroll.scrollTop, width: scroll.clientWidth, height: scroll.clientHeight },
    };
  }

  paint() {
    const picture = this.picture;
    paintPicture(this.contextOf(this.parts.base), picture);
    this.paintMarks(picture);
    this.paintLegend();
  }

  paintMarks(picture = this.picture) {
    const active = this.hovered ?? (this.focused ? this.cursor : null);
    paintMarks(this.contextOf(this.parts.stage), picture, { active, pinned: this.pinned });
    this.writeReadout(active);
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
    const { parts, zoom, geometry } = this;
    const fits = zoom.mode === "fit";
    parts.fit.setAttribute("aria-pressed", String(fits));
    parts.fit.title = fits ? "Back to a readable size" : "Show every cell at once";
    parts.fit.setAttribute("aria-label", `Fit: ${parts.fit.title.toLowerCase()}`);
    parts.out.disabled = geometry.pitchX <= geometry.whole.x + 0.01;
    parts.in.disabled = geometry.pitchX >= LARGEST_PITCH;
  }

  // Words

  writeReadout(active) {
    const { parts, model } = this;
    if (this.notice) parts.readout.replaceChildren(this.notice);
    else if (active) parts.readout.replaceChildren(...readoutNodes(model, active));
    else parts.readout.replaceChildren(element("span", { class: "name" }, model.caption));
    parts.pinnedLine.classList.toggle("hint", !this.pinned);
    parts.pinnedLine.replaceChildren(
      ...(this.pinned ? [element("span", { class: "dot" }, "Pinned"), ...readoutNodes(model, this.pinned)] : [this.hint()]),
    );
  }

  hint() {
    const { scroll } = this.parts;
    const { contentWidth, contentHeight } = this.geometry;
    const more = contentWidth > scroll.clientWidth + 1 || contentHeight > scroll.clientHeight + 1;
    const how = "Point at a cell or use the arrow keys; click to pin it";
    return more ? `${this.model.rowCount} × ${this.model.columnCount} cells: scroll, or press Fit to see them all` : how;
  }

  say(text) {
    this.parts.live.textContent = text;
  }

  // What a reader does

  handle() {
    const { stage, scroll, out, fit, in: zoomIn, png, svg } = this.parts;
    stage.onpointermove = (event) => this.hover(event);
    stage.onpointerleave = () => this.setHovered(null);
    stage.onclick = (event) => this.click(event);
    stage.onkeydown = (event) => this.press(event);
    stage.onfocus = () => this.focusChanged(stage.matches(":focus-visible"));
    stage.onblur = () => this.focusChanged(false);
    scroll.onscroll = () => this.scrolled();
    scroll.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    out.onclick = () => this.zoomBy(1 / 1.3);
    zoomIn.onclick = () => this.zoomBy(1.3);
    fit.onclick = () => this.toggleFit();
    png.onclick = () => savePng(this.picture);
    svg.onclick = () => this.saveSvgOrSay();
  }

  hover(event) {
    if (event.pointerType === "touch") return;
    this.setHovered(this.cellOf(event));
  }

  cellOf(event) {
    const { model, geometry, view } = this.picture;
    return pointed(model, geometry, view, event.offsetX, event.offsetY);
  }

  setHovered(cell) {
    if (cell?.row === this.hovered?.row && cell?.column === this.hovered?.column) return;
    this.hovered = cell;
    this.notice = null;
    this.parts.stage.title = this.wholeLabel(cell);
    this.parts.stage.style.cursor = cell && cell.row !== null && cell.column !== null ? "crosshair" : "default";
    this.paintMarks();
  }

  /** The full text of a label under the pointer, which the picture may have cut. */
  wholeLabel(cell) {
    if (!cell || (cell.row !== null && cell.column !== null)) return "";
    return cell.row === null ? this.model.columnLabels[cell.column] : this.model.rowLabels[cell.row];
  }

  click(event) {
    const cell = this.cellOf(event);
    if (!cell || cell.row === null || cell.column === null) return;
    this.cursor = cell;
    this.togglePin(cell);
  }

  togglePin(cell) {
    const same = this.pinned && cell && this.pinned.row === cell.row && this.pinned.column === cell.column;
    this.setPinned(same ? null : cell);
  }

  setPinned(cell) {
    this.pinned = cell;
    this.remember();
    this.paintMarks();
    this.say(cell ? `Pinned: ${sentence(this.model, cell)}` : "Nothing is pinned");
    this.report(cell);
  }

  focusChanged(focused) {
    this.focused = focused;
    if (focused) this.cursor ??= this.pinned ?? { row: 0, column: 0 };
    this.paintMarks();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = this.cursor ?? this.pinned ?? { row: 0, column: 0 };
    const target = this.destination(event.key, cursor);
    if (target) this.moveTo(target);
    else if (event.key === "Enter" || event.key === " ") this.togglePin(cursor);
    else if (event.key === "Escape") this.escape();
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.3);
    else if (event.key === "-") this.zoomBy(1 / 1.3);
    else return;
    event.preventDefault();
  }

  destination(key, { row, column }) {
    const { model } = this;
    const page = Math.max(Math.floor((this.parts.scroll.clientHeight - this.geometry.top) / this.geometry.pitchY) - 1, 1);
    const steps = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, model.columnCount - 1],
      PageUp: [row - page, column],
      PageDown: [row + page, column],
    };
    if (!Object.hasOwn(steps, key)) return null;
    const within = (index, count) => Math.min(Math.max(index, 0), count - 1);
    return { row: within(steps[key][0], model.rowCount), column: within(steps[key][1], model.columnCount) };
  }

  moveTo(cell) {
    this.cursor = cell;
    this.hovered = null;
    this.notice = null;
    this.focused = true;
    this.reveal(cell);
    this.remember();
    this.paintMarks();
    this.say(sentence(this.model, cell));
  }

  escape() {
    this.hovered = null;
    if (this.pinned) this.setPinned(null);
    else {
      this.cursor = null;
      this.paintMarks();
    }
  }

  /** Scrolls by as little as shows a cell. */
  reveal({ row, column }) {
    const { scroll } = this.parts;
    const { left, top, pitchX, pitchY } = this.geometry;
    const shown = (start, pitch, from, room) => Math.max(Math.min(from, start), start + pitch - room);
    scroll.scrollTo({
      left: shown(column * pitchX, pitchX, scroll.scrollLeft, scroll.clientWidth - left - 2),
      top: shown(row * pitchY, pitchY, scroll.scrollTop, scroll.clientHeight - top - 2),
      behavior: "instant",
    });
  }

  scrolled() {
    if (this.painting) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = null;
      this.hovered = null;
      this.paint();
      this.remember();
    });
  }

  wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault(); // otherwise the browser zooms the page
    // Touchpads send many small turns; they add up to steps as a wheel makes them.
    this.turned = (this.turned ?? 0) - event.deltaY;
    if (Math.abs(this.turned) < 40) return;
    this.zoomBy(this.turned > 0 ? 1.15 : 1 / 1.15, { x: event.offsetX, y: event.offsetY });
    this.turned = 0;
  }

  toggleFit() {
    this.zoom = this.zoom.mode === "fit" ? { mode: "auto", factor: 1 } : { mode: "fit", factor: 1 };
    this.arrange();
    this.remember();
  }

  /** Zooms and keeps the point `at` of the view, by default its middle, over the same cell. */
  zoomBy(ratio, at = null) {
    const before = this.picture;
    const old = this.geometry;
    const point = at ?? { x: (before.view.width + old.left) / 2, y: (before.view.height + old.top) / 2 };
    const least = old.whole.x / old.automatic.x;
    const most = LARGEST_PITCH / old.automatic.x;
    const factor = Math.min(Math.max(stepped(old, ratio), least), most);
    this.zoom = factor <= least * 1.001 ? { mode: "fit", factor: 1 } : { mode: "free", factor };
    const column = (point.x - old.left + before.view.x) / old.pitchX;
    const row = (point.y - old.top + before.view.y) / old.pitchY;
    this.arrange();
    const { left, top, pitchX, pitchY } = this.geometry;
    const goal = { left: column * pitchX - (point.x - left), top: row * pitchY - (point.y - top) };
    this.parts.scroll.scrollTo({ ...goal, behavior: "instant" });
    this.paint();
    this.remember();
  }

  saveSvgOrSay() {
    this.notice = svgRefusal(this.model);
    if (!this.notice) return saveSvg(this.picture);
    this.say(this.notice);
    return this.paintMarks();
  }
}

/** The factor after one zoom step; whole-pixel pitches would otherwise swallow small steps. */
function stepped(geometry, ratio) {
  const wanted = geometry.pitchX * ratio;
  const pitch = wanted < 6 ? wanted : ratio > 1 ? Math.ceil(wanted) : Math.floor(wanted);
  return pitch / geometry.automatic.x;
}

export default function (component) {
  const root = component.parentElement.querySelector(".matrix");
  if (!views.has(root)) views.set(root, new MatrixView(root));
  return views.get(root).update(component);
}
