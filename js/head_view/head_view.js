// The head view as a component: lines from token to token.

import { leading, within } from "../core/canvas_view.js";
import { element } from "../core/dom.js";
import { mounting } from "../core/mount.js";
import { ScrolledView } from "../core/scrolled_view.js";
import { plainNumber } from "../core/text.js";
import { Attention } from "./attention.js";
import { drawnOf, savedHeads, titleOf } from "./file.js";
import { headLayout, inView, unitAt } from "./layout.js";
import { permitted, STEPS } from "./lines.js";
import { layerName, MEAN, unitName, unpackHeads } from "./model.js";
import { chosenOf, paintChosen, paintCursor, paintHeads } from "./paint.js";
import {
  chipsOf,
  chosenValue,
  headChips,
  headParts,
  press,
  pressOne,
  rowNodes,
  shareSentence,
  weightsTable,
} from "./parts.js";

/**
 * @typedef {import("../core/saving.js").Saved} Saved
 * @typedef {import("./layout.js").HeadGeometry} HeadGeometry
 * @typedef {import("./layout.js").Place} Place
 * @typedef {import("./lines.js").Permitted} Permitted
 * @typedef {import("./model.js").Head} Head
 * @typedef {import("./model.js").HeadModel} HeadModel
 * @typedef {import("./model.js").Options} Options
 * @typedef {import("./model.js").Pins} Pins
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 */

/** @extends {ScrolledView<HeadModel, Place, import("./parts.js").HeadParts, HeadGeometry>} */
class HeadView extends ScrolledView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const parts = headParts(root);
    super(root, parts);
    /** @type {Head[]} */
    this.series = [MEAN];
    /** @type {Pins} */
    this.pins = { side: "query", units: [] };
    /** The options that a link carries. @type {Options | null} */
    this.chosenOptions = null;
    /** @type {Permitted} */
    this.allowed = { shown: [], isSource: () => false, isTarget: () => false };
    /** @type {Map<number, number>} */
    this.places = new Map();
    this.wantedLayer = 1;
    this.asked = 0;
    this.step = 0;
    this.waiting = false;
    this.chips = "";
    this.preparing = 0;
    // Set by the first update, before anything reads it.
    this.attention = /** @type {Attention} */ (/** @type {unknown} */ (null));
    /** @type {(view: unknown) => void} */
    this.tell = () => {};
    /** @type {(layer: number) => Promise<Uint8Array>} */
    this.fetchLayer = (layer) => fetchedLayer(this.model.source, layer);
    this.listenToControls();
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue, fetchLayer, listenTo }) {
    this.tell = (view) => setStateValue("view", view);
    if (fetchLayer) this.fetchLayer = fetchLayer;
    listenTo?.((wish) => this.grant(wish));
  }

  /** Shows what a kernel wishes. @param {{layer: number, heads: Head[], pins: Pins}} wish */
  grant({ layer, heads, pins }) {
    this.series = heads;
    this.pins = pins;
    this.showHeads();
    this.arrange();
    this.report();
    this.goToLayer(layer);
  }

  /** @override @param {Uint8Array} data */
  take(data) {
    const { model: before } = this;
    this.model = unpackHeads(data);
    this.attention = new Attention(this.model);
    const { digest, wish, heads, source } = this.model;
    const { known } = this;
    const same = known?.digest === digest;
    // What the reader chose outlives another text; only heads chosen elsewhere on the page replace it.
    /** @type {Head[]} */
    const held = known?.turn === wish.turn ? known.series : wish.heads;
    this.series = held.filter((head) => head === MEAN || head < heads.length);
    if (this.model.rolled || !this.series.length) this.series = [MEAN];
    this.chosenOptions ??= known?.options ?? { ...wish.options };
    if (before?.digest !== digest) {
      this.pins = same ? known.pins : wish.pins;
      this.wantedScroll = same ? known.scroll : { x: 0, y: 0 };
      this.hovered = this.cursor = null;
    }
    this.wantedLayer = this.model.layer;
    this.asked++; // a layer still on its way is none of this text
    // Mounted anew with what was sent at first, though the reader has gone on from there.
    if (!before && known?.source === source && known.turn === wish.turn) this.goToLayer(known.layer);
    this.remember();
  }

  /** @returns {Options} */
  get options() {
    return this.chosenOptions ?? this.model.wish.options;
  }

  /** @override */
  get kept() {
    const { series, options, pins, wantedLayer: layer } = this;
    const { digest, wish, source } = this.model;
    const { x, y } = this.view;
    return { digest, source, layer, turn: wish.turn, series, options, pins, scroll: { x, y } };
  }

  /** Tells the page what is shown, which puts it into the address; `lost` asks it to send the layer again. */
  report(lost = false) {
    this.remember();
    const { digest, wish, heads } = this.model;
    const { layout, direction, specials, fit, step } = this.options;
    const options = { layout, direction, specials, fit, step };
    const series = this.series.map((head) => (head === MEAN ? MEAN : heads[head]));
    this.tell({ digest, turn: wish.turn, layer: this.wantedLayer, series, options, pins: this.pins, lost });
  }

  // Controls

  /** @override */
  describe() {
    const { parts, model, options } = this;
    const chips = JSON.stringify([model.heads, model.headLabels, model.rolled]);
    if (this.chips !== chips) parts.chips.replaceChildren(...headChips(model));
    this.chips = chips;
    parts.directions.hidden = !model.units.some((unit) => unit.segment);
    parts.specials.hidden = !model.units.some((unit) => unit.special);
    pressOne(parts.layouts, options.layout);
    pressOne(parts.directions, options.direction);
    press(parts.specials, options.specials);
    press(parts.fit, options.fit);
    this.showLayer();
    this.showHeads();
  }

  showLayer() {
    const { parts, model, wantedLayer } = this;
    const place = `${wantedLayer} of ${model.layers}`;
    parts.layer.textContent = `Layer ${model.layerNumbers ? `${layerName(model, wantedLayer)} · ` : ""}${place}`;
    parts.layer.ariaValueNow = String(wantedLayer);
    parts.layer.ariaValueMin = "1";
    parts.layer.ariaValueMax = String(model.layers);
    parts.layer.ariaValueText = `${wantedLayer} of ${model.layers}`;
    parts.down.disabled = wantedLayer <= 1;
    parts.up.disabled = wantedLayer >= model.layers;
  }

  showHeads() {
    const { parts, model, series } = this;
    const every = series.length === model.heads.length && series[0] !== MEAN && series.length > 1;
    const chips = chipsOf(parts.chips);
    const pressed = chips.filter(({ dataset: { head } }) => {
      if (head === "all") return every;
      return head === MEAN ? series[0] === MEAN : series.includes(Number(head));
    });
    for (const chip of chips) {
      press(chip, pressed.includes(chip));
      chip.tabIndex = -1;
    }
    const current = pressed[0] ?? chips[0];
    if (current) current.tabIndex = 0;
    parts.note.textContent = this.noteText();
    parts.stage.setAttribute("aria-label", this.title());
  }

  /** What the chosen heads do, where their profile says it. */
  noteText() {
    const { model, series } = this;
    if (model.rolled) return "This measure is of the layer as a whole, so there are no single heads.";
    if (series[0] === MEAN) {
      return "The mean is a summary that hides what single heads do. Click a head to see it alone.";
    }
    const said = series
      .map(Number)
      .filter((head) => model.headLabels[head])
      .map((head) => `${model.heads[head] + 1} ${model.headLabels[head]}`);
    if (said.length) return `On this text: ${said.slice(0, 6).join(" · ")}`;
    return series.length === 1 ? "Nothing stands out in where this head looks on this text." : "";
  }

  title() {
    return titleOf(this, this.series);
  }

  listenToControls() {
    const { parts } = this;
    parts.down.onclick = () => this.goToLayer(this.wantedLayer - 1);
    parts.up.onclick = () => this.goToLayer(this.wantedLayer + 1);
    parts.layer.onkeydown = (event) => this.pressOnLayer(event);
    parts.chips.onclick = (event) => {
      const chip = event.target instanceof Element ? event.target.closest(".chip") : null;
      if (chip instanceof HTMLElement) this.chooseHead(chip, event.shiftKey);
    };
    parts.chips.onkeydown = (event) => this.pressOnChips(event);
    parts.layouts.onclick = (event) => {
      const layout = chosenValue(event);
      if (layout === "columns" || layout === "reading") this.set({ layout });
    };
    parts.directions.onclick = (event) => {
      const direction = chosenValue(event);
      if (direction) this.set({ direction });
    };
    parts.specials.onclick = () => this.set({ specials: !this.options.specials });
    parts.fit.onclick = () => this.set({ fit: !this.options.fit });
    parts.threshold.oninput = () => this.set({ step: STEPS[Number(parts.threshold.value)] ?? null }, false);
    parts.threshold.onchange = () => this.report();
    parts.details.ontoggle = () => this.mark();
  }

  /** @param {Partial<Options>} option @param {boolean} tell */
  set(option, tell = true) {
    this.chosenOptions = { ...this.options, ...option };
    if (option.layout) this.wantedScroll = { x: 0, y: 0 };
    this.describe();
    this.arrange();
    if (tell) this.report();
  }

  /** @param {number} layer */
  goToLayer(layer) {
    const wanted = Math.min(Math.max(layer, 1), this.model.layers);
    if (wanted === this.wantedLayer) return;
    this.wantedLayer = wanted;
    this.showLayer();
    this.say(`Layer ${layerName(this.model, wanted)}`);
    this.show(wanted);
  }

  /** Fetches a layer and draws it; only then is the page told, whose answer may wait. @param {number} layer */
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
    this.describe();
    this.paint(); // the tokens are where they were
    this.prepareLater();
    requestAnimationFrame(() => setTimeout(() => asked === this.asked && this.report()));
  }

  /** @param {KeyboardEvent} event */
  pressOnLayer(event) {
    const { wantedLayer: now } = this;
    const goals = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1 };
    const goal = leading({ ...goals, Home: 1, End: this.model.layers }, event.key);
    if (goal === undefined) return;
    event.preventDefault();
    this.goToLayer(goal);
  }

  /** @param {HTMLElement} chip @param {boolean} several */
  chooseHead({ dataset: { head } }, several) {
    if (head === MEAN) this.setSeries([MEAN]);
    else if (head === "all") this.setSeries(this.model.heads.map((_, i) => i));
    else this.setSeries(several ? this.toggled(Number(head)) : [Number(head)]);
  }

  /** @param {number} head @returns {Head[]} */
  toggled(head) {
    const others = this.series.filter((one) => one !== MEAN && one !== head);
    const next = this.series.includes(head)
      ? others
      : [...others, head].sort((a, b) => Number(a) - Number(b));
    return next.length ? next : [MEAN];
  }

  /** @param {Head[]} series */
  setSeries(series) {
    this.series = series;
    this.showHeads();
    this.arrange();
    this.say(this.title());
    this.report();
  }

  /** @param {KeyboardEvent} event */
  pressOnChips(event) {
    const chips = chipsOf(this.parts.chips);
    const now = chips.findIndex((chip) => chip.matches(":focus"));
    const goal = leading(
      { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: chips.length - 1 },
      event.key,
    );
    if (goal !== undefined) {
      event.preventDefault();
      chips[within(goal, chips.length)].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.chooseHead(chips[now], event.shiftKey);
      chips[now].focus();
    }
  }

  /** One head on or back; before the first comes the mean. @param {number} by */
  stepHead(by) {
    if (this.model.rolled) return;
    const [first] = this.series;
    const now = this.series.length === 1 && first !== MEAN ? first : -1;
    const next = Math.min(Math.max(now + by, -1), this.model.heads.length - 1);
    this.setSeries([next < 0 ? MEAN : next]);
  }

  // Size and drawing

  /** @override */
  get mostHeight() {
    return Math.max(420, Math.min(window.innerHeight * 0.72, 860));
  }

  /** @override @param {{width: number, height: number}} box */
  laidOut(box) {
    const { model, allowed, options, measure } = this;
    const labels = allowed.shown.map((unit) => model.labels[unit]);
    return headLayout(labels, box, options, measure);
  }

  /** @override */
  arrange() {
    this.allowed = permitted(this.model, this.options);
    this.places = new Map(this.allowed.shown.map((unit, index) => [unit, index]));
    super.arrange();
    this.prepareLater();
  }

  /** @override @param {boolean} scrolls */
  arranged(scrolls) {
    this.parts.fit.hidden = !scrolls && !this.options.fit;
  }

  /** @returns {HeadPicture} */
  get picture() {
    const { model, theme, measure, geometry, places, view } = this;
    return { model, theme, measure, geometry, shown: this.allowed.shown, places, view };
  }

  /** @override */
  paint() {
    const { parts, model, picture } = this;
    const { step } = this.options;
    const { attention, series, allowed } = this;
    const drawn = drawnOf(picture, { attention, series, allowed, step });
    this.step = drawn.step;
    paintHeads(this.penFor(parts.base), picture, drawn.lines);
    parts.share.textContent = shareSentence(model, drawn);
    parts.threshold.value = String(step === null ? -1 : STEPS.indexOf(step));
    const least = plainNumber(drawn.step * model.full, 2);
    parts.thresholdText.textContent = step === null ? `Lines from ${least} (auto)` : `Lines from ${least}`;
    parts.threshold.setAttribute("aria-valuetext", parts.thresholdText.textContent);
    this.mark();
  }

  /** The units that are looked at now: under the pointer or the cursor, else those pinned. @returns {Pins | null} */
  get looked() {
    const { active, pins } = this;
    if (active) return { side: active.side, units: [this.allowed.shown[active.index]] };
    const units = pins.units.filter((unit) => this.places.has(unit));
    return units.length ? { side: pins.side, units } : null;
  }

  /** @override */
  mark() {
    const { stage, base } = this.parts;
    const { picture, looked } = this;
    const pen = this.penFor(stage);
    const weights = looked && chosenOf(picture, this, looked);
    base.classList.toggle("faded", Boolean(weights));
    if (weights) paintChosen(pen, picture, weights);
    if (this.focused && this.cursor) paintCursor(pen, picture, this.cursor);
    this.waiting = Boolean(looked) && !weights;
    this.write(weights);
  }

  /** @param {ReturnType<typeof chosenOf>} weights */
  write(weights) {
    const { parts, model, pins } = this;
    if (this.waiting) parts.readout.textContent = "Adding up what looks at this token …";
    else if (weights) parts.readout.replaceChildren(...rowNodes(model, weights));
    else parts.readout.textContent = this.title();
    const pinned = pins.units.map((unit) => model.labels[unit]).join(" + ");
    parts.second.replaceChildren(
      pinned
        ? element("span", {}, element("span", { class: "pin" }, "Pinned"), element("bdi", {}, pinned))
        : "Point at a token or use the arrow keys; click to pin it, several to add them up",
    );
    parts.details.style.visibility = weights ? "visible" : "hidden"; // keeps its place, so that nothing jumps
    if (weights && parts.details.open) {
      parts.table.replaceChildren(...weightsTable(model, this.series, weights));
    }
  }

  /** Who looks at a token needs all rows; they are gone through in idle slices, so that no hover waits for them. */
  prepareLater() {
    clearTimeout(this.preparing);
    const [first] = this.series;
    const heads = first === MEAN ? this.model.heads.map((_, i) => i) : this.series.map(Number);
    const slice = () => {
      if (!this.attention.prepare(heads, 8)) this.preparing = window.setTimeout(slice, 4);
      else if (this.waiting) this.mark();
    };
    this.preparing = window.setTimeout(slice, 30);
  }

  // What a reader does on the picture

  /** @override @param {MouseEvent} event */
  placeUnder(event) {
    return unitAt(this.picture, event.offsetX, event.offsetY);
  }

  /** @override @returns {Place} */
  firstPlace() {
    return { side: "query", index: inView(this.picture)[0] };
  }

  /** @override @param {Place | null} place */
  pointed(place) {
    const { stage } = this.parts;
    stage.style.cursor = place ? "pointer" : "default";
    stage.title = place ? this.model.labels[this.allowed.shown[place.index]] : "";
  }

  /** Several pinned tokens are of one side; the first of the other side begins anew. @override @param {Place} place */
  choose(place) {
    this.cursor = place;
    const { side, index } = place;
    const unit = this.allowed.shown[index];
    const held = this.pins.side === side ? this.pins.units : [];
    this.pin({ side, units: held.includes(unit) ? held.filter((one) => one !== unit) : [...held, unit] });
  }

  /** @param {Pins} pins */
  pin(pins) {
    this.pins = pins;
    this.mark();
    const names = pins.units.map((unit) => unitName(this.model, unit)).join(", ");
    this.say(names ? `Pinned: ${names}` : "Nothing is pinned");
    this.report();
  }

  /** @override */
  letGo() {
    if (!this.pins.units.length) return false;
    this.pin({ side: this.pins.side, units: [] });
    return true;
  }

  /** @override @param {string} key */
  pressOther(key) {
    const layer = leading({ "[": -1, "]": 1 }, key);
    const head = leading({ ",": -1, ".": 1 }, key);
    if (layer) this.goToLayer(this.wantedLayer + layer);
    else if (head) this.stepHead(head);
    return Boolean(layer || head);
  }

  /** @override @param {string} key @param {Place} from @returns {Place | null} */
  destination(key, { side, index }) {
    const count = this.allowed.shown.length;
    const [back, on, toQuery, toKey] = this.geometry.vertical
      ? ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]
      : ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
    const along = { [back]: index - 1, [on]: index + 1, Home: 0, End: count - 1 };
    const goal = leading({ ...along, PageUp: index - 20, PageDown: index + 20 }, key);
    if (goal !== undefined) return { side, index: within(goal, count) };
    if (key === toQuery) return { side: "query", index: within(index, count) };
    return key === toKey ? { side: "key", index: within(index, count) } : null;
  }

  /** @override */
  said() {
    return this.parts.readout.textContent ?? "";
  }

  /** Scrolls by as little as shows a unit. @override @param {Place} place */
  reveal({ index }) {
    const { starts, vertical } = this.geometry;
    const { x, y, width, height } = this.view;
    /** @param {number} from @param {number} room */
    const shown = (from, room) => Math.max(Math.min(from, starts[index] - 26), starts[index + 1] + 4 - room);
    if (vertical) this.scrollTo(x, shown(y, height));
    else this.scrollTo(shown(x, width), y);
  }

  // Files

  /** @override @returns {Saved} */
  saved() {
    const { attention, series, allowed, pins, step } = this;
    return savedHeads(this.picture, { attention, series, allowed, pins, step });
  }
}

/** @param {string} source @param {number} layer */
async function fetchedLayer(source, layer) {
  const response = await fetch(`${source}${layer}`);
  if (response.status !== 200) throw new Error(`Layer ${layer} is not there.`); // 204: not yet
  return new Uint8Array(await response.arrayBuffer());
}

export default mounting(".head-view", HeadView);
