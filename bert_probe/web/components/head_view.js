// The component: one view per mounted element, updated on every data or theme change.

const memory = new Map(); // key of the component → what a reader had set, so that a remount does not lose it
const views = new WeakMap();
const HELD = ["layout", "direction", "specials", "fit", "step"]; // options that a link carries

class HeadView {
  constructor(root) {
    this.root = root;
    this.parts = buildHeadParts(root);
    this.generation = 0;
    this.hovered = null;
    this.cursor = null;
    this.resized = new ResizeObserver(() => this.fitToWidth());
    this.redraw = () => this.fitToWidth(true);
    this.handle();
  }

  /** Called on every rerun that changed data or theme; returns the clean-up for exactly this call. */
  update({ data, setStateValue, fetchLayer }) {
    const generation = ++this.generation;
    this.send = setStateValue;
    this.fetchLayer = fetchLayer ?? ((layer) => fetchedLayer(this.model.source, layer));
    if (data !== this.data) this.take(data);
    this.theme = this.readTheme();
    if (this.theme.font !== this.font) this.measure = textMeasure(this.theme);
    this.font = this.theme.font;
    this.showControls();
    this.resized.observe(this.root);
    window.addEventListener("resize", this.redraw); // adding the same listener again adds nothing
    this.fitToWidth(true);
    this.awaitFont(generation);
    // Streamlit may clean up after a superseded call once a newer one has run: only the newest may let go.
    return () => {
      if (generation !== this.generation) return;
      this.resized.disconnect();
      window.removeEventListener("resize", this.redraw);
    };
  }

  take(data) {
    const before = this.model;
    this.data = data;
    this.model = unpackHeads(data);
    this.attention = new Attention(this.model);
    const { key, digest, wish, heads } = this.model;
    const known = memory.get(key);
    const same = known?.digest === digest;
    // What the reader chose outlives another text; only heads chosen elsewhere on the page replace it.
    const held = known?.turn === wish.turn ? known.series : wish.heads;
    this.series = held.filter((head) => head === MEAN || head < heads.length);
    if (this.model.rolled || !this.series.length) this.series = [MEAN];
    if (!this.options) this.options = known?.options ?? { ...wish.options };
    if (before?.digest !== digest) {
      this.pins = same ? known.pins : wish.pins;
      this.wantedScroll = same ? known.scroll : { x: 0, y: 0 };
      this.hovered = this.cursor = null;
    }
    this.wantedLayer = this.model.layer;
    this.asked = (this.asked ?? 0) + 1; // a layer still on its way is none of this text
    // Mounted anew with what was sent at first, though the reader has gone on from there.
    if (!before && known?.source === this.model.source && known.turn === wish.turn) this.goToLayer(known.layer);
    this.remember();
  }

  /** Keeps what a reader chose over remounts. */
  remember() {
    const { scrollLeft: x, scrollTop: y } = this.parts.scroll;
    const { series, options, pins } = this;
    const { key, digest, wish, source } = this.model;
    const layer = this.wantedLayer;
    memory.set(key, { digest, source, layer, turn: wish.turn, series, options, pins, scroll: { x, y } });
  }

  /** Tells Python what is shown, which puts it into the address; `lost` asks it to send the layer again. */
  report(lost = false) {
    this.remember();
    const { digest, wish, heads } = this.model;
    const options = Object.fromEntries(HELD.map((name) => [name, this.options[name]]));
    const series = this.series.map((head) => (head === MEAN ? MEAN : heads[head]));
    this.send("view", { digest, turn: wish.turn, layer: this.wantedLayer, series, options, pins: this.pins, lost });
  }

  readTheme() {
    const style = getComputedStyle(this.root);
    const variable = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
    const background = variable("--st-background-color", "#fbfaf7");
    const dark = luminance(channels(background)) < 0.3;
    const ink = variable("--st-text-color", dark ? "#ecebf2" : "#1c1b22");
    return {
      background,
      ink,
      muted: mixed(ink, background, 0.36),
      accent: variable("--st-primary-color", dark ? "#a7a2ff" : "#4338ca"),
      second: this.model.second[Number(dark)],
      font: variable("--st-font", "sans-serif"),
    };
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

  // Controls

  showControls() {
    const { parts, model, options } = this;
    const chips = JSON.stringify([model.heads, model.headLabels, model.rolled]);
    if (this.chips !== chips) parts.chips.replaceChildren(...headChips(model));
    this.chips = chips;
    parts.directions.hidden = !model.units.some((unit) => unit.segment);
    parts.specials.hidden = !model.units.some((unit) => unit.special);
    press(parts.layouts, options.layout);
    press(parts.directions, options.direction);
    parts.specials.setAttribute("aria-pressed", String(options.specials));
    parts.fit.setAttribute("aria-pressed", String(options.fit));
    this.showLayer();
    this.showHeads();
  }

  showLayer() {
    const { parts, model, wantedLayer } = this;
    parts.layer.textContent = `Layer ${wantedLayer} of ${model.layers}`;
    const values = { now: wantedLayer, min: 1, max: model.layers, text: `${wantedLayer} of ${model.layers}` };
    for (const [name, value] of Object.entries(values)) parts.layer.setAttribute(`aria-value${name}`, value);
    parts.down.disabled = wantedLayer <= 1;
    parts.up.disabled = wantedLayer >= model.layers;
  }

  showHeads() {
    const { parts, model, series } = this;
    const every = series.length === model.heads.length && series[0] !== MEAN && series.length > 1;
    for (const chip of parts.chips.children) {
      const { head } = chip.dataset;
      const on = head === "all" ? every : head === MEAN ? series[0] === MEAN : series.includes(Number(head));
      chip.setAttribute("aria-pressed", String(on));
      chip.tabIndex = -1;
    }
    const current = parts.chips.querySelector('[aria-pressed="true"]') ?? parts.chips.firstElementChild;
    if (current) current.tabIndex = 0;
    parts.note.textContent = this.noteText();
    parts.stage.setAttribute("aria-label", this.title());
  }

  /** What the chosen heads do, where their profile says it. */
  noteText() {
    const { model, series } = this;
    if (model.rolled) return "This measure is of the layer as a whole, so there are no single heads.";
    if (series[0] === MEAN) return "The mean is a summary that hides what single heads do. Click a head to see it alone.";
    const said = series.filter((head) => model.headLabels[head]).map((head) => `${model.heads[head] + 1} ${model.headLabels[head]}`);
    if (said.length) return `On this text: ${said.slice(0, 6).join(" · ")}`;
    return series.length === 1 ? "Nothing stands out in where this head looks on this text." : "";
  }

  title() {
    const { title, layer, rolled } = this.model;
    return rolled ? `${title} layer ${layer}` : `${title} in layer ${layer}, ${seriesName(this.model, this.series)}`;
  }

  handle() {
    const { parts } = this;
    parts.down.onclick = () => this.goToLayer(this.wantedLayer - 1);
    parts.up.onclick = () => this.goToLayer(this.wantedLayer + 1);
    parts.layer.onkeydown = (event) => this.pressOnLayer(event);
    parts.chips.onclick = (event) => this.choose(event.target.closest(".chip"), event.shiftKey);
    parts.chips.onkeydown = (event) => this.pressOnChips(event);
    parts.layouts.onclick = (event) => this.set("layout", event.target.dataset.value);
    parts.directions.onclick = (event) => this.set("direction", event.target.dataset.value);
    parts.specials.onclick = () => this.set("specials", !this.options.specials);
    parts.fit.onclick = () => this.set("fit", !this.options.fit);
    parts.threshold.oninput = () => this.set("step", this.stepChosen(), false);
    parts.threshold.onchange = () => this.report();
    parts.png.onclick = () => this.savePng();
    parts.svg.onclick = () => this.saveSvg();
    parts.details.ontoggle = () => this.paintMarks();
    parts.scroll.onscroll = () => this.scrolled();
    const { stage } = parts;
    stage.onpointermove = (event) => event.pointerType !== "touch" && this.setHovered(this.unitOf(event));
    stage.onpointerleave = () => this.setHovered(null);
    stage.onclick = (event) => this.click(event);
    stage.onkeydown = (event) => this.press(event);
    stage.onfocus = () => this.focusChanged(stage.matches(":focus-visible"));
    stage.onblur = () => this.focusChanged(false);
  }

  stepChosen() {
    const index = Number(this.parts.threshold.value);
    return index < 0 ? null : STEPS[index];
  }

  set(name, value, tell = true) {
    if (value === undefined) return;
    this.options = { ...this.options, [name]: value };
    if (name === "layout") this.wantedScroll = { x: 0, y: 0 };
    this.showControls();
    this.arrange();
    if (tell) this.report();
  }

  goToLayer(layer) {
    const wanted = Math.min(Math.max(layer, 1), this.model.layers);
    if (wanted === this.wantedLayer) return;
    this.wantedLayer = wanted;
    this.showLayer();
    this.say(`Layer ${wanted}`);
    this.show(wanted);
  }

  /** Fetches a layer and draws it; only then is Python told, whose answer may wait. */
  async show(layer) {
    const asked = ++this.asked;
    const data = await this.fetchLayer(layer).catch(() => null);
    if (asked !== this.asked) return;
    if (!data) {
      this.report(true);
      return;
    }
    const { key, wish, source } = this.model;
    this.model = { ...unpackHeads(data), key, wish, source };
    this.attention = new Attention(this.model);
    this.showControls();
    this.paint(); // the tokens are where they were
    this.prepareLater();
    requestAnimationFrame(() => setTimeout(() => asked === this.asked && this.report()));
  }

  pressOnLayer(event) {
    const turns = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -1000, End: 1000 };
    if (!Object.hasOwn(turns, event.key)) return;
    event.preventDefault();
    this.goToLayer(this.wantedLayer + turns[event.key]);
  }

  choose(chip, several) {
    if (!chip) return;
    const { head } = chip.dataset;
    if (head === MEAN) return this.setSeries([MEAN]);
    if (head === "all") return this.setSeries(this.model.heads.map((_, i) => i));
    return this.setSeries(several ? this.toggled(Number(head)) : [Number(head)]);
  }

  toggled(head) {
    const others = this.series.filter((one) => one !== MEAN && one !== head);
    const without = this.series.includes(head);
    const next = without ? others : [...others, head].sort((a, b) => a - b);
    return next.length ? next : [MEAN];
  }

  setSeries(series) {
    this.series = series;
    this.showHeads();
    this.arrange();
    this.say(this.title());
    this.report();
  }

  pressOnChips(event) {
    const chips = [...this.parts.chips.children];
    const now = chips.indexOf(this.root.getRootNode().activeElement);
    const goals = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: chips.length - 1 };
    if (Object.hasOwn(goals, event.key)) {
      event.preventDefault();
      chips[Math.min(Math.max(goals[event.key], 0), chips.length - 1)].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(chips[now], event.shiftKey);
      chips[now].focus();
    }
  }

  /** One head on or back; before the first comes the mean. */
  stepHead(by) {
    if (this.model.rolled) return;
    const now = this.series.length === 1 && this.series[0] !== MEAN ? this.series[0] : -1;
    const next = Math.min(Math.max(now + by, -1), this.model.heads.length - 1);
    this.setSeries([next < 0 ? MEAN : next]);
  }

  // Size and drawing

  fitToWidth(force = false) {
    const width = this.root.clientWidth;
    if (!width || (!force && width === this.width)) return; // hidden, e.g. in a tab that is not open
    this.width = width;
    this.arrange();
  }

  arrange() {
    const { parts, model, options, measure } = this;
    this.permitted = allowed(model, options);
    this.placeOf = {};
    this.permitted.shown.forEach((unit, index) => (this.placeOf[unit] = index));
    const box = { width: this.width, height: Math.max(420, Math.min(window.innerHeight * 0.72, 860)) };
    const bar = scrollbarWidth(parts.scroll);
    let geometry = headLayout(model, this.permitted.shown, box, options, measure);
    const tall = geometry.contentHeight > box.height + 1;
    if (tall) geometry = headLayout(model, this.permitted.shown, { ...box, width: box.width - bar }, options, measure);
    const wide = geometry.contentWidth > box.width + 1;
    this.geometry = geometry;
    parts.scroll.style.overflowX = wide ? "scroll" : "hidden";
    parts.scroll.style.overflowY = tall ? "scroll" : "hidden";
    parts.scroll.style.height = `${Math.min(geometry.contentHeight, box.height) + (wide ? bar : 0)}px`;
    parts.extent.style.width = `${geometry.contentWidth}px`;
    parts.extent.style.height = `${geometry.contentHeight}px`;
    parts.fit.hidden = !tall && !wide && !options.fit;
    if (this.wantedScroll) parts.scroll.scrollTo({ left: this.wantedScroll.x, top: this.wantedScroll.y, behavior: "instant" });
    this.wantedScroll = null;
    this.ratio = sizedCanvases(this.parts);
    this.paint();
    this.prepareLater();
  }

  get picture() {
    const { scroll } = this.parts;
    const { model, theme, measure, geometry, permitted, placeOf } = this;
    const view = { x: scroll.scrollLeft, y: scroll.scrollTop, width: scroll.clientWidth, height: scroll.clientHeight };
    return { model, theme, measure, geometry, permitted, placeOf, shown: permitted.shown, view };
  }

  /** What is drawn of the queries that a picture shows. */
  drawnOf(picture, step = this.options.step) {
    const [first, end] = inView(picture);
    const queries = picture.shown.slice(first, end);
    return { ...linesFrom(this.attention, this.series, queries, picture.permitted, step), queries };
  }

  paint() {
    const picture = this.picture;
    const drawn = this.drawnOf(picture);
    this.step = drawn.step;
    paintHeads(this.contextOf(this.parts.base), picture, drawn);
    const whole = drawn.queries.length === this.model.units.length;
    this.parts.share.textContent = shareSentence(this.model, drawn, drawn.queries.length, whole);
    const { step } = this.options;
    this.parts.threshold.value = String(step === null ? -1 : STEPS.indexOf(step));
    const least = plainNumber(drawn.step * this.model.full);
    this.parts.thresholdText.textContent = step === null ? `Lines from ${least} (auto)` : `Lines from ${least}`;
    this.parts.threshold.setAttribute("aria-valuetext", this.parts.thresholdText.textContent);
    this.paintMarks();
  }

  contextOf(canvas) {
    return scaledContext(canvas, this.ratio);
  }

  /** The units that are looked at now: under the pointer or the cursor, else those pinned. */
  get looked() {
    const active = this.hovered ?? (this.focused ? this.cursor : null);
    if (active) return { side: active.side, units: [this.permitted.shown[active.index]] };
    const units = this.pins.units.filter((unit) => unit in this.placeOf);
    return units.length ? { side: this.pins.side, units } : null;
  }

  weightsOf({ side, units }) {
    const { permitted, series } = this;
    const targets = permitted.shown.filter(side === "query" ? permitted.isTarget : permitted.isSource);
    const weights = chosenWeights(this.attention, series, side, units, targets);
    const colour = series.length === 1 ? seriesColour(this, series[0]) : this.theme.accent;
    return weights && { side, units, targets, colour, ...weights };
  }

  paintMarks() {
    const { stage, base } = this.parts;
    const context = this.contextOf(stage);
    const picture = this.picture;
    context.clearRect(0, 0, picture.view.width, picture.view.height);
    const looked = this.looked;
    const weights = looked && this.weightsOf(looked);
    base.classList.toggle("faded", Boolean(weights));
    if (weights) paintChosen(context, picture, weights);
    if (this.focused && this.cursor) paintCursor(context, picture, this.cursor);
    this.waiting = looked && !weights;
    this.write(looked, weights);
  }

  write(looked, weights) {
    const { parts, model, series, pins } = this;
    if (this.waiting) parts.readout.textContent = "Adding up what looks at this token …";
    else if (weights) parts.readout.replaceChildren(...rowNodes(model, looked.side, looked.units, weights.mean, weights.targets, series.length > 1));
    else parts.readout.textContent = this.title();
    const pinned = pins.units.map((unit) => model.labels[unit]).join(" + ");
    parts.second.replaceChildren(
      pinned ? element("span", {}, element("span", { class: "pin" }, "Pinned"), element("bdi", {}, pinned)) : "Point at a token or use the arrow keys; click to pin it, several to add them up",
    );
    parts.details.style.visibility = weights ? "visible" : "hidden"; // keeps its place, so that nothing jumps
    if (!weights || !parts.details.open) return;
    parts.table.replaceChildren(...weightsTable(model, looked.side, looked.units, series, weights, weights.targets));
  }

  /** Who looks at a token needs all rows; they are gone through in idle slices, so that no hover waits for them. */
  prepareLater() {
    clearTimeout(this.preparing);
    const heads = this.series[0] === MEAN ? this.model.heads.map((_, i) => i) : this.series;
    const slice = () => {
      if (!this.attention.prepare(heads, 8)) this.preparing = setTimeout(slice, 4);
      else if (this.waiting) this.paintMarks();
    };
    this.preparing = setTimeout(slice, 30);
  }

  say(text) {
    this.parts.live.textContent = text;
  }

  // What a reader does on the picture

  unitOf(event) {
    return unitAt(this.picture, event.offsetX, event.offsetY);
  }

  setHovered(place) {
    if (place?.side === this.hovered?.side && place?.index === this.hovered?.index) return;
    this.hovered = place;
    this.parts.stage.style.cursor = place ? "pointer" : "default";
    this.parts.stage.title = place ? this.model.labels[this.permitted.shown[place.index]] : "";
    this.paintMarks();
  }

  click(event) {
    const place = this.unitOf(event);
    if (place) {
      this.cursor = place;
      this.togglePin(place);
    }
  }

  /** Several pinned tokens are of one side; the first of the other side begins anew. */
  togglePin({ side, index }) {
    const unit = this.permitted.shown[index];
    const held = this.pins.side === side ? this.pins.units : [];
    const units = held.includes(unit) ? held.filter((one) => one !== unit) : [...held, unit];
    this.setPins({ side, units });
  }

  setPins(pins) {
    this.pins = pins;
    this.paintMarks();
    this.say(pins.units.length ? `Pinned: ${pins.units.map((unit) => unitName(this.model, unit)).join(", ")}` : "Nothing is pinned");
    this.report();
  }

  focusChanged(focused) {
    this.focused = focused;
    if (focused) this.cursor ??= { side: "query", index: inView(this.picture)[0] };
    this.paintMarks();
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const cursor = this.cursor ?? { side: "query", index: 0 };
    const target = this.destination(event.key, cursor);
    if (target) this.moveTo(target);
    else if (event.key === "Enter" || event.key === " ") this.togglePin(cursor);
    else if (event.key === "Escape") this.escape();
    else if (event.key === "[" || event.key === "]") this.goToLayer(this.wantedLayer + (event.key === "]" ? 1 : -1));
    else if (event.key === "," || event.key === ".") this.stepHead(event.key === "." ? 1 : -1);
    else return;
    event.preventDefault();
  }

  destination(key, { side, index }) {
    const last = this.permitted.shown.length - 1;
    const [back, on, toQuery, toKey] = this.geometry.vertical
      ? ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]
      : ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
    const steps = { [back]: index - 1, [on]: index + 1, Home: 0, End: last, PageUp: index - 20, PageDown: index + 20 };
    if (Object.hasOwn(steps, key)) return { side, index: Math.min(Math.max(steps[key], 0), last) };
    if (key === toQuery || key === toKey) return { side: key === toQuery ? "query" : "key", index: Math.min(index, last) };
    return null;
  }

  moveTo(place) {
    this.cursor = place;
    this.hovered = null;
    this.focused = true;
    this.reveal(place.index);
    this.paintMarks();
    this.say(this.parts.readout.textContent);
  }

  escape() {
    this.hovered = null;
    if (this.pins.units.length) this.setPins({ side: this.pins.side, units: [] });
    else {
      this.cursor = null;
      this.paintMarks();
    }
  }

  /** Scrolls by as little as shows a unit. */
  reveal(index) {
    const { scroll } = this.parts;
    const { starts, vertical } = this.geometry;
    const shown = (from, room) => Math.max(Math.min(from, starts[index] - 26), starts[index + 1] + 4 - room);
    if (vertical) scroll.scrollTo({ top: shown(scroll.scrollTop, scroll.clientHeight), behavior: "instant" });
    else scroll.scrollTo({ left: shown(scroll.scrollLeft, scroll.clientWidth), behavior: "instant" });
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

  // Files

  savePng() {
    const saved = this.savedPicture();
    const ratio = saved.height * saved.width > 9e6 ? 1 : 2;
    const canvas = element("canvas");
    [canvas.width, canvas.height] = [saved.width * ratio, saved.height * ratio];
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.paintSaved(context, saved);
    canvas.toBlob((blob) => offer(blob, `${this.model.fileName}.png`), "image/png");
  }

  saveSvg() {
    const saved = this.savedPicture();
    const pen = new SvgPen(saved.width, saved.height, this.title());
    this.paintSaved(pen, saved);
    offer(new Blob([pen.text], { type: "image/svg+xml" }), `${this.model.fileName}.svg`);
  }

  /** The whole text where that makes a reasonable picture, else the part in view; with what a caption says. */
  savedPicture() {
    const screen = this.picture;
    const { contentWidth: width, contentHeight: height } = this.geometry;
    const whole = Math.max(width, height) <= 12_000;
    const view = whole ? { x: 0, y: 0, width: Math.ceil(width), height: Math.ceil(height) } : screen.view;
    const picture = { ...screen, view };
    const drawn = this.drawnOf(picture, this.step);
    const count = drawn.queries.length;
    const said = [this.model.caption, shareSentence(this.model, drawn, count, count === this.model.units.length)];
    const lines = [this.title(), ...said].flatMap((text, i) => {
      const size = i ? 12 : 15;
      return wrapped(text, view.width - 40, size, this.measure).map((line) => ({ text: line, size }));
    });
    const top = 24 + lines.length * 18;
    return { picture, drawn, lines, top, width: view.width, height: view.height + top + 10 };
  }

  paintSaved(pen, { picture, drawn, lines, top, width, height }) {
    const { theme } = this;
    pen.fillStyle = theme.background;
    pen.fillRect(0, 0, width, height);
    pen.translate(0, top);
    const looked = this.pins.units.length ? this.looked : null;
    const weights = looked && this.weightsOf(looked);
    paintHeads(pen, picture, weights ? { lines: [] } : drawn);
    if (weights) paintChosen(pen, picture, weights);
    pen.translate(0, -top);
    // Lines to tokens out of view would run through the caption.
    pen.fillStyle = theme.background;
    pen.fillRect(0, 0, width, top);
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    lines.forEach(({ text, size }, i) => {
      pen.font = fontOf(theme, size, size > 12 ? 600 : 400);
      pen.fillStyle = size > 12 ? theme.ink : theme.muted;
      pen.fillText(text, 20, 26 + i * 18);
    });
  }
}

async function fetchedLayer(source, layer) {
  const response = await fetch(`${source}${layer}`);
  if (response.status !== 200) throw new Error(`Layer ${layer} is not there.`); // 204: not yet
  return new Uint8Array(await response.arrayBuffer());
}

export default function mount(component) {
  const root = component.parentElement.querySelector(".head-view");
  if (!views.has(root)) views.set(root, new HeadView(root));
  return views.get(root).update(component);
}
