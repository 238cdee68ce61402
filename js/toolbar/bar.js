// The toolbar of the attention views: layer, heads, words, special tokens, measure, and other options behind "More".

import { leading, within } from "../core/canvas_view.js";
import { element } from "../core/dom.js";
import { layerWithin, MEAN, toggled } from "../core/view.js";
import { barParts, headChips, pressAll, pressOne, setPressed } from "./parts.js";

/**
 * @typedef {import("../core/view.js").Head} Head
 * @typedef {import("../core/view.js").Options} Options
 * @typedef {import("../core/view.js").View} View
 */

/**
 * The available choices; see `ToolbarOptions` in `views/toolbar.py`.
 *
 * @typedef {object} Offer
 * @property {number} layers
 * @property {number} heads
 * @property {boolean} several
 * @property {boolean} rolled
 * @property {boolean} specials
 * @property {boolean} pair
 * @property {[name: string, label: string, meaning: string][]} measures
 * @property {boolean} words
 * @property {string[]} more
 * @property {number[]} residuals
 * @property {boolean} shares
 */

/**
 * @typedef {object} Choice
 * @property {Offer} offer
 * @property {View} view
 * @property {string[][]} labels one-word labels of the heads, [layer][head]; empty until they arrive
 * @property {number[] | null} [numbers] numbers of the layers, if they are not all layers of the model
 */

/** Called with a change of the view, and whether the change is final or part of a drag. */
/** @typedef {(change: Partial<View>, made: boolean) => void} Choose */

const ROOMY = 620; // minimum width in pixels for a bar with all common options

export class Toolbar {
  /** @param {Choose} choose */
  constructor(choose) {
    this.choose = choose;
    this.parts = barParts();
    /** @type {Choice | null} */
    this.choice = null;
    this.drawn = "";
    /** Whether a click adds or removes a head, like shift-click, for touch screens. */
    this.adding = false;
    this.resized = new ResizeObserver(() => this.fold());
    this.resized.observe(this.parts.root);
    this.listen();
  }

  get root() {
    return this.parts.root;
  }

  /** Updates the controls from the view. @param {Choice} choice */
  show(choice) {
    const { parts } = this;
    const { offer, view, labels } = choice;
    this.choice = choice;
    const of = labels[view.layer - 1] ?? [];
    const drawn = JSON.stringify([offer, of]);
    if (this.drawn !== drawn) {
      this.drawn = drawn;
      const focused = parts.chips.querySelector(":focus")?.getAttribute("data-head");
      parts.chips.replaceChildren(...headChips(offer, of));
      if (focused)
        /** @type {HTMLElement | null} */ (parts.chips.querySelector(`[data-head="${focused}"]`))?.focus();
      this.offer(offer);
    }
    this.showLayer(view.layer, offer.layers, choice.numbers?.[view.layer - 1]);
    this.showHeads(view.heads, offer);
    setPressed(parts.words, view.words);
    // If the current measure is not available, the first one is selected.
    const chosen = offer.measures.find(([name]) => name === view.measure) ?? offer.measures[0];
    parts.measure.value = chosen?.[0] ?? "";
    parts.measure.title = chosen?.[2] ?? "";
    this.showOptions(view);
  }

  /** Shows the available controls. @param {Offer} offer */
  offer(offer) {
    const { parts } = this;
    const { more } = offer;
    parts.words.hidden = !offer.words;
    parts.specials.hidden = !offer.specials;
    const options = offer.measures.map(([name, label]) => element("option", { value: name }, label));
    parts.measure.replaceChildren(...options);
    parts.measure.hidden = offer.measures.length < 2;
    for (const [name, row] of Object.entries(parts.rows)) row.hidden = !more.includes(name);
    parts.renormalise.textContent = offer.shares ? "Normalize rows" : "Rows sum to 1";
    parts.residual.max = String(offer.residuals.length - 1);
    this.fold();
  }

  /** @param {number} layer @param {number} layers @param {number} [name] its number in the model, if it differs */
  showLayer(layer, layers, name) {
    const { parts } = this;
    parts.layer.textContent = `Layer ${name ? `${name} · ` : ""}${layer} of ${layers}`;
    parts.layer.ariaValueNow = String(layer);
    parts.layer.ariaValueMin = "1";
    parts.layer.ariaValueMax = String(layers);
    parts.layer.ariaValueText = `${layer} of ${layers}`;
    parts.down.disabled = layer <= 1;
    parts.up.disabled = layer >= layers;
  }

  /** @param {Head[]} heads @param {Offer} offer */
  showHeads(heads, offer) {
    const shown = offer.several ? heads : heads.slice(0, 1);
    const every = shown.length === offer.heads && shown[0] !== MEAN && shown.length > 1;
    pressAll(this.parts.chips, (head) => {
      if (head === "all") return every;
      return head === MEAN ? shown[0] === MEAN : shown.includes(Number(head));
    });
  }

  /** @param {View} view */
  showOptions({ options, residual }) {
    const { parts, choice } = this;
    setPressed(parts.specials, options.specials);
    pressOne(parts.layouts, options.layout);
    pressOne(parts.directions, options.direction);
    setPressed(parts.fit, options.fit);
    setPressed(parts.renormalise, options.renormalise);
    setPressed(parts.colors, options.root);
    const offer = choice?.offer;
    parts.renormalise.disabled = Boolean(offer?.shares) && options.specials;
    parts.renormalise.title = parts.renormalise.disabled
      ? "Rows already sum to 1 while special tokens are visible"
      : "Divides each row by its sum, so that rows can be compared";
    parts.residual.value = String(offer?.residuals.indexOf(residual) ?? 0);
    parts.residualText.textContent = `Residual share ${residual}`;
    parts.residual.setAttribute("aria-valuetext", parts.residualText.textContent);
  }

  /** Updates the threshold for lines. @param {number | null} step @param {string} least */
  showLines(step, least) {
    const { parts } = this;
    parts.threshold.value = String(step === null ? -1 : parts.steps.indexOf(step));
    parts.thresholdText.textContent = step === null ? "Strongest lines: half" : `Lines from ${least}`;
    parts.threshold.setAttribute("aria-valuetext", parts.thresholdText.textContent);
  }

  /** In a narrow toolbar everything except layer and heads moves behind "More". */
  fold() {
    const { parts, choice } = this;
    const narrow = parts.root.clientWidth < ROOMY;
    parts.root.classList.toggle("narrow", narrow);
    const place = narrow ? parts.popover : parts.row;
    if (parts.choices.parentElement !== place) {
      if (narrow) parts.popover.prepend(parts.choices);
      else parts.row.insertBefore(parts.choices, parts.more);
    }
    const folded = narrow && [parts.words, parts.specials, parts.measure].some((one) => !one.hidden);
    parts.more.hidden = !folded && !choice?.offer.more.length;
  }

  // Controls

  listen() {
    const { parts } = this;
    parts.down.onclick = () => this.stepLayer(-1);
    parts.up.onclick = () => this.stepLayer(1);
    parts.layer.onkeydown = (event) => this.pressOnLayer(event);
    parts.chips.onclick = (event) => {
      const chip = event.target instanceof Element ? event.target.closest(".chip") : null;
      if (chip instanceof HTMLElement) this.chooseHead(chip, event.shiftKey || this.adding);
    };
    parts.several.onclick = () => {
      this.adding = !this.adding;
      setPressed(parts.several, this.adding);
    };
    parts.chips.onkeydown = (event) => this.pressOnChips(event);
    parts.words.onclick = () => {
      this.choose({ words: !this.view.words, pins: { side: "query", units: [] } }, true);
    };
    parts.specials.onclick = () => this.set({ specials: !this.view.options.specials });
    parts.measure.onchange = () => this.choose({ measure: parts.measure.value }, true);
    parts.layouts.onclick = (event) => {
      const layout = chosenValue(event);
      if (layout === "columns" || layout === "reading") this.set({ layout });
    };
    parts.directions.onclick = (event) => {
      const direction = chosenValue(event);
      if (direction) this.set({ direction });
    };
    parts.fit.onclick = () => this.set({ fit: !this.view.options.fit });
    parts.renormalise.onclick = () => this.set({ renormalise: !this.view.options.renormalise });
    parts.colors.onclick = () => this.set({ root: !this.view.options.root });
    parts.threshold.oninput = () =>
      this.set({ step: parts.steps[Number(parts.threshold.value)] ?? null }, false);
    parts.threshold.onchange = () => this.set({});
    parts.residual.onchange = () => {
      const residual = this.choice?.offer.residuals[Number(parts.residual.value)];
      if (residual !== undefined) this.choose({ residual }, true);
    };
    parts.popover.ontoggle = () => this.placePopover();
  }

  /** @returns {View} */
  get view() {
    if (!this.choice) throw new Error("The toolbar has no data yet.");
    return this.choice.view;
  }

  /** @param {Partial<Options>} option */
  set(option, made = true) {
    this.choose({ options: { ...this.view.options, ...option } }, made);
  }

  /** @param {number} by */
  stepLayer(by) {
    this.goToLayer(this.view.layer + by);
  }

  /** @param {number} goal */
  goToLayer(goal) {
    const layer = layerWithin(goal, this.choice?.offer.layers ?? 1);
    if (layer !== this.view.layer) this.choose({ layer }, true);
  }

  /** @param {KeyboardEvent} event */
  pressOnLayer(event) {
    const { layer: now } = this.view;
    const goals = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1 };
    const goal = leading({ ...goals, Home: 1, End: Number.POSITIVE_INFINITY }, event.key);
    if (goal === undefined) return;
    event.preventDefault();
    this.goToLayer(goal);
  }

  /** @param {HTMLElement} chip @param {boolean} several */
  chooseHead({ dataset: { head } }, several) {
    const { heads: count, several: may } = /** @type {Choice} */ (this.choice).offer;
    const { heads } = this.view;
    if (head === MEAN) this.choose({ heads: [MEAN] }, true);
    else if (head === "all") this.choose({ heads: Array.from({ length: count }, (_, i) => i) }, true);
    else this.choose({ heads: several && may ? toggled(heads, Number(head)) : [Number(head)] }, true);
  }

  /** @param {KeyboardEvent} event */
  pressOnChips(event) {
    const chips = /** @type {HTMLElement[]} */ ([...this.parts.chips.children]);
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
      this.chooseHead(chips[now], event.shiftKey || this.adding);
      chips[now].focus();
    }
  }

  /** Positions the popover below its button, within the window. */
  placePopover() {
    const { popover, more } = this.parts;
    const open = popover.matches(":popover-open");
    more.setAttribute("aria-expanded", String(open));
    if (!open) return;
    const [at, box] = [more.getBoundingClientRect(), popover.getBoundingClientRect()];
    const left = Math.max(8, Math.min(at.right - box.width, window.innerWidth - box.width - 8));
    Object.assign(popover.style, { left: `${left}px`, top: `${at.bottom + 6}px` });
  }
}

/**
 * The value of the button that triggered an event.
 *
 * @param {Event} event
 * @returns {string | undefined}
 */
function chosenValue(event) {
  return event.target instanceof HTMLElement ? event.target.dataset.value : undefined;
}
