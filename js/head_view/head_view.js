// The head view component: attention as lines between tokens. `shown` is the only copy of its state.

import { leading, within } from "../core/canvas_view.js";
import { element } from "../core/dom.js";
import { mounting } from "../core/mount.js";
import { Payload } from "../core/payload.js";
import { ScrolledView } from "../core/scrolled_view.js";
import { Source } from "../core/source.js";
import { plainNumber } from "../core/text.js";
import { changed, keep, MEAN, newest, resumed, stepped } from "../core/view.js";
import { Toolbar } from "../toolbar/bar.js";
import { Attention } from "./attention.js";
import { barsOf, chosenOf, drawnOf } from "./drawn.js";
import { headLayout, inView, unitAt } from "./layout.js";
import { permitted } from "./lines.js";
import { inWords, layerName, unitName, unpackHeads } from "./model.js";
import { paintChosen, paintCursor, paintHeads } from "./paint.js";
import { headParts } from "./parts.js";
import { savedHeads } from "./saved.js";
import {
  reasonNodes,
  rowNodes,
  shareSentence,
  specialSentence,
  titleNodes,
  titleOf,
  weightsTable,
} from "./sentences.js";

/**
 * @typedef {import("../core/view.js").Head} Head
 * @typedef {import("../core/view.js").Pins} Pins
 * @typedef {import("../core/view.js").Shown} Shown
 * @typedef {import("../core/view.js").View} View
 * @typedef {import("../toolbar/bar.js").Offer} Offer
 * @typedef {import("./layout.js").HeadGeometry} HeadGeometry
 * @typedef {import("./layout.js").Place} Place
 * @typedef {import("./lines.js").Permitted} Permitted
 * @typedef {import("./model.js").HeadModel} HeadModel
 * @typedef {import("./paint.js").HeadPicture} HeadPicture
 * @typedef {import("./sentences.js").Reason} Reason
 */

/**
 * The initial state from `views/head_view.py`; a layer's numbers are part of it or fetched.
 *
 * @typedef {{key: string, shown: Shown, offer: Offer, source: string, reason: Reason | null}} Announced
 */

/** @extends {ScrolledView<HeadModel, Place, import("./parts.js").HeadParts, HeadGeometry>} */
class HeadView extends ScrolledView {
  /** @param {HTMLElement} root */
  constructor(root) {
    const bar = new Toolbar((change, made) => this.look(change, made));
    const parts = headParts(root, bar.root);
    super(root, parts);
    this.bar = bar;
    /** @type {Permitted} */
    this.allowed = { shown: [], isSource: () => false, isTarget: () => false };
    /** @type {Map<number, number>} */
    this.places = new Map();
    /** The labels of the heads, [layer][head]; empty until they arrive. @type {string[][]} */
    this.labels = [];
    this.asked = 0;
    /** The latest revision that was reported to the page. */
    this.told = 0;
    this.units = "";
    this.waiting = false;
    this.preparing = 0;
    // Set by the first update, before anything reads them.
    this.announced = /** @type {Announced} */ (/** @type {unknown} */ (null));
    this.shown = /** @type {Shown} */ (/** @type {unknown} */ (null));
    this.source = /** @type {Source} */ (/** @type {unknown} */ (null));
    this.attention = /** @type {Attention} */ (/** @type {unknown} */ (null));
    /** @type {(report: unknown) => void} */
    this.tell = () => {};
    /** @type {import("../core/mount.js").Component<Uint8Array>["fetchLayer"]} */
    this.held = undefined;
    parts.scroll.hidden = true; // until the first layer has arrived
    parts.details.ontoggle = () => this.mark();
  }

  /** @override @param {import("../core/mount.js").Component<Uint8Array>} component */
  attach({ setStateValue, fetchLayer, listenTo }) {
    this.tell = (report) => setStateValue("shown", report);
    this.held = fetchLayer;
    listenTo?.(({ layer, heads, words, pins }) => this.look({ layer, heads, words, pins }));
  }

  // State

  /** The current view. @returns {View} */
  get choice() {
    return this.shown.view;
  }

  /** The visible heads. @returns {Head[]} */
  get series() {
    const { rolled, heads } = this.model;
    const held = rolled ? [] : this.choice.heads.filter((head) => head === MEAN || head < heads.length);
    return held.length ? held : [MEAN];
  }

  /** The visible pinned units. @returns {Pins} */
  get chosen() {
    const { side, units } = this.choice.pins;
    return { side, units: units.filter((unit) => unit < this.model.units.length) };
  }

  /** @override @param {Uint8Array} data */
  take(data) {
    const payload = new Payload(data);
    this.announced = payload.described;
    const { key, shown, source } = this.announced;
    this.shown = resumed(key, shown);
    this.told = Math.max(this.told, shown.revision);
    const fresh = this.source?.address !== source;
    if (fresh) {
      this.source = new Source(source, this.held);
      this.labels = [];
    }
    const sent = payload.has("firsts") ? unpackHeads(data) : null;
    if (sent?.layer === this.choice.layer) {
      this.asked++; // a layer that is still loading is outdated
      this.adopt(sent);
      this.settle();
    } else if (fresh || this.model?.layer !== this.choice.layer) this.load();
  }

  /**
   * Changes the view; it is reported to the page after painting, because the response can wait.
   *
   * @param {Partial<View>} change
   * @param {boolean} made whether the change is final, and not part of a drag
   */
  look(change, made = true) {
    if (change.options && change.options.layout !== this.choice.options.layout) {
      this.wantedScroll = { x: 0, y: 0 };
    }
    this.shown = changed(this.shown, change);
    keep(this.announced.key, this.shown);
    this.describe();
    if (change.layer !== undefined) {
      this.say(`Layer ${this.model ? layerName(this.model, change.layer) : change.layer}`);
      this.load();
      return;
    }
    if (!this.model) {
      if (made) this.report(); // its first layer is still loading
      return;
    }
    if (change.heads) this.say(titleOf(this.model, this.series));
    if ("words" in change && this.model.other) {
      this.adopt(this.model);
      this.describe();
      this.fitToWidth(true);
    } else if (change.pins && !("words" in change)) this.mark();
    else if (change.heads || change.options) this.arrange();
    if (made) this.report();
  }

  /** Reports the newest state to the page; `lost` requests the layer from the page, if it could not be fetched. */
  report(lost = false) {
    const shown = newest(this.announced.key, this.shown);
    this.told = shown.revision;
    this.tell({ ...shown, lost });
  }

  /** Fetches the selected layer, and paints it. */
  async load() {
    const asked = ++this.asked;
    const data = await this.source.layer(this.choice.layer);
    if (asked !== this.asked) return;
    if (!data) {
      this.report(true);
      return;
    }
    const { units } = this;
    this.adopt(unpackHeads(data));
    this.describe();
    if (this.units === units)
      this.paint(); // the tokens have not moved
    else this.fitToWidth(true);
    this.prepareLater();
    requestAnimationFrame(() => setTimeout(() => asked === this.asked && this.settle()));
  }

  /** After painting: reports the state to the page, and requests the labels of the heads. */
  async settle() {
    if (this.shown.revision > this.told) this.report();
    const { source } = this;
    if (this.labels.length) return;
    const labels = await source.labels();
    if (source !== this.source || !labels.length) return;
    this.labels = labels;
    this.describe();
    this.mark();
  }

  /** Sets the numbers of a layer. @param {HeadModel} model */
  adopt(model) {
    this.model = { ...inWords(model, this.choice.words), key: this.announced.key };
    this.attention = new Attention(this.model);
    if (model.labels.length) this.labels = model.labels;
    this.parts.scroll.hidden = false;
    const units = this.model.names.join("\n");
    if (this.units === units) return;
    this.units = units;
    this.wantedScroll = this.known?.units === units ? this.known.scroll : { x: 0, y: 0 };
    this.hovered = this.cursor = null;
  }

  /** @override */
  get kept() {
    const { x, y } = this.view;
    return { units: this.units, scroll: { x, y } };
  }

  /** @override */
  describe() {
    const { offer } = this.announced;
    this.bar.show({
      offer,
      view: this.choice,
      labels: this.labels,
      numbers: this.model?.layerNumbers,
    });
    if (this.model) this.parts.stage.setAttribute("aria-label", titleOf(this.model, this.series));
  }

  // Size and drawing

  /** @override */
  get mostHeight() {
    return Math.max(420, Math.min(window.innerHeight * 0.72, 860));
  }

  /** @override @param {{width: number, height: number}} box */
  laidOut(box) {
    const { model, allowed, measure } = this;
    const names = allowed.shown.map((unit) => model.names[unit]);
    return headLayout(names, box, this.choice.options, measure);
  }

  /** @override */
  arrange() {
    if (!this.model) return; // still loading
    this.allowed = permitted(this.model, this.choice.options);
    this.places = new Map(this.allowed.shown.map((unit, index) => [unit, index]));
    super.arrange();
    this.prepareLater();
  }

  /** @returns {HeadPicture} */
  get picture() {
    const { model, theme, measure, geometry, places, view } = this;
    return { model, theme, measure, geometry, shown: this.allowed.shown, places, view };
  }

  /** @returns {import("./drawn.js").Looks} */
  get looks() {
    const { attention, series, allowed } = this;
    return { attention, series, allowed, options: this.choice.options };
  }

  /** @override */
  paint() {
    const { parts, model, picture, looks } = this;
    const drawn = drawnOf(picture, looks);
    const bars = barsOf(picture, looks, drawn.queries);
    paintHeads(this.penFor(parts.base), picture, drawn.lines, bars);
    parts.share.textContent = shareSentence(model, drawn) + specialSentence(bars);
    this.bar.showLines(this.choice.options.step, plainNumber(drawn.least, 2));
    this.mark();
  }

  /** The active units: under the pointer or the keyboard cursor, else the pinned ones. @returns {Pins | null} */
  get looked() {
    const { active, chosen } = this;
    if (active) return { side: active.side, units: [this.allowed.shown[active.index]] };
    const units = chosen.units.filter((unit) => this.places.has(unit));
    return units.length ? { side: chosen.side, units } : null;
  }

  /** @override */
  mark() {
    if (!this.geometry) return;
    const { stage, base } = this.parts;
    const { picture, looked } = this;
    const pen = this.penFor(stage);
    const weights = looked && chosenOf(picture, this.looks, looked);
    base.classList.toggle("faded", Boolean(weights));
    if (weights) paintChosen(pen, picture, weights);
    if (this.focused && this.cursor) paintCursor(pen, picture, this.cursor);
    this.waiting = Boolean(looked) && !weights;
    this.write(weights);
  }

  /** @param {ReturnType<typeof chosenOf>} weights */
  write(weights) {
    const { parts, model, chosen } = this;
    if (this.waiting) parts.readout.textContent = "Computing the attention on this token …";
    else if (weights) parts.readout.replaceChildren(...rowNodes(model, weights));
    else {
      const { layer, heads } = this.choice;
      const { reason } = this.announced;
      const stands = reason?.layer === layer && heads.length === 1 && reason.head === heads[0];
      parts.readout.replaceChildren(
        ...(reason && stands
          ? reasonNodes(reason, () => this.look({ heads: [MEAN] }))
          : titleNodes(model, this.series, this.labels[model.layer - 1] ?? [])),
      );
    }
    const pinned = chosen.units.map((unit) => model.names[unit]).join(" + ");
    parts.second.replaceChildren(
      pinned
        ? element("span", {}, element("span", { class: "pin" }, "Pinned"), element("bdi", {}, pinned))
        : "Point at a token or use the arrow keys; click to pin it, several to add them up",
    );
    parts.details.style.visibility = weights ? "visible" : "hidden"; // hidden without a layout shift
    if (weights && parts.details.open) {
      parts.table.replaceChildren(...weightsTable(model, this.series, weights));
    }
  }

  /** The column of a token needs all rows; they are computed when idle, so that hovering stays fast. */
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

  // Interaction

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
    stage.title = place ? this.model.names[this.allowed.shown[place.index]] : "";
  }

  /** Pins a token. All pins are on one side; pinning on the other side replaces them. @override @param {Place} place */
  choose(place) {
    this.cursor = place;
    const { side, index } = place;
    const unit = this.allowed.shown[index];
    const { chosen } = this;
    const held = chosen.side === side ? chosen.units : [];
    this.pin({ side, units: held.includes(unit) ? held.filter((one) => one !== unit) : [...held, unit] });
  }

  /** @param {Pins} pins */
  pin(pins) {
    this.look({ pins });
    const names = pins.units.map((unit) => unitName(this.model, unit)).join(", ");
    this.say(names ? `Pinned: ${names}` : "Nothing is pinned");
  }

  /** @override */
  letGo() {
    if (!this.chosen.units.length) return false;
    this.pin({ side: this.chosen.side, units: [] });
    return true;
  }

  /** @override @param {string} key */
  pressOther(key) {
    const layer = leading({ "[": -1, "]": 1 }, key);
    const head = leading({ ",": -1, ".": 1 }, key);
    if (layer) this.bar.stepLayer(layer);
    else if (head && !this.model.rolled) {
      this.look({ heads: stepped(this.choice.heads, head, this.model.heads.length) });
    }
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

  /** Scrolls a unit into view. @override @param {Place} place */
  reveal({ index }) {
    const { starts, vertical } = this.geometry;
    const { x, y, width, height } = this.view;
    /** @param {number} from @param {number} room */
    const shown = (from, room) => Math.max(Math.min(from, starts[index] - 26), starts[index + 1] + 4 - room);
    if (vertical) this.scrollTo(x, shown(y, height));
    else this.scrollTo(shown(x, width), y);
  }

  // Files

  /** @override */
  saved() {
    return this.model ? savedHeads(this.picture, this.looks, this.chosen) : null;
  }
}

export default mounting(".head-view", HeadView);
