// The toolbar of the attention views: layer, heads, words, special tokens, measure, and other options behind "More".

import { clampIndex, lookUp } from "../core/canvas_view.js";
import { element } from "../core/dom.js";
import { clampLayer, MEAN, toggleHead } from "../core/selection.js";
import { headChips, pressChips, pressValue, setPressed, toolbarParts } from "./parts.js";

/**
 * @typedef {import("../core/selection.js").Head} Head
 * @typedef {import("../core/selection.js").Options} Options
 * @typedef {import("../core/selection.js").Selection} Selection
 */

/**
 * The available choices; see `ToolbarOptions` in `views/head_view.py`.
 *
 * @typedef {object} ToolbarOptions
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
 * @typedef {object} ToolbarState
 * @property {ToolbarOptions} offer
 * @property {Selection} selection
 * @property {string[][]} labels one-word labels of the heads, [layer][head]; empty until they arrive
 * @property {number[] | null} [layerNumbers] numbers of the layers, if they are not all layers of the model
 */

/**
 * Called with a change of the selection, and whether the change is final or part of a drag. */ /**
 *
 * @typedef {(change: Partial<Selection>, isFinal: boolean) => void} OnChange
 */

const WIDE = 620; // minimum width in pixels for a bar with all common options

export class Toolbar {
  /** @param {OnChange} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.parts = toolbarParts();
    /** @type {ToolbarState | null} */
    this.state = null;
    this.signature = "";
    /** Whether a click adds or removes a head, like shift-click, for touch screens. */
    this.isAdding = false;
    this.resizeObserver = new ResizeObserver(() => this.foldControls());
    this.resizeObserver.observe(this.parts.root);
    this.listen();
  }

  get root() {
    return this.parts.root;
  }

  /** Updates the controls. @param {ToolbarState} state */
  update(state) {
    const { parts } = this;
    const { offer, selection, labels } = state;
    this.state = state;
    const layerLabels = labels[selection.layer - 1] ?? [];
    const signature = JSON.stringify([offer, layerLabels]);
    if (this.signature !== signature) {
      this.signature = signature;
      const focused = parts.chips.querySelector(":focus")?.getAttribute("data-head");
      parts.chips.replaceChildren(...headChips(offer, layerLabels));
      if (focused)
        /** @type {HTMLElement | null} */ (parts.chips.querySelector(`[data-head="${focused}"]`))?.focus();
      this.updateAvailability(offer);
    }
    this.updateLayer(selection.layer, offer.layers, state.layerNumbers?.[selection.layer - 1]);
    this.updateHeads(selection.heads, offer);
    setPressed(parts.words, selection.words);
    // Select the first measure if the current measure is not available.
    const measure = offer.measures.find(([name]) => name === selection.measure) ?? offer.measures[0];
    parts.measure.value = measure?.[0] ?? "";
    parts.measure.title = measure?.[2] ?? "";
    this.updateOptions(selection);
  }

  /** Shows the available controls. @param {ToolbarOptions} offer */
  updateAvailability(offer) {
    const { parts } = this;
    const { more } = offer;
    parts.words.hidden = !offer.words;
    parts.specials.hidden = !offer.specials;
    const options = offer.measures.map(([name, label]) => element("option", { value: name }, label));
    parts.measure.replaceChildren(...options);
    parts.measure.hidden = offer.measures.length < 2;
    for (const [name, row] of Object.entries(parts.rows)) row.hidden = !more.includes(name);
    parts.renormalize.textContent = offer.shares ? "Normalize rows" : "Rows sum to 1";
    parts.residual.max = String(offer.residuals.length - 1);
    this.foldControls();
  }

  /** @param {number} layer @param {number} layers @param {number} [name] number of the layer in the model, if it
   * differs from `layer` */
  updateLayer(layer, layers, name) {
    const { parts } = this;
    parts.layer.textContent = `Layer ${name ? `${name} · ` : ""}${layer} of ${layers}`;
    parts.layer.ariaValueNow = String(layer);
    parts.layer.ariaValueMin = "1";
    parts.layer.ariaValueMax = String(layers);
    parts.layer.ariaValueText = `${layer} of ${layers}`;
    parts.down.disabled = layer <= 1;
    parts.up.disabled = layer >= layers;
  }

  /** @param {Head[]} heads @param {ToolbarOptions} offer */
  updateHeads(heads, offer) {
    const visibleHeads = offer.several ? heads : heads.slice(0, 1);
    const isAll = visibleHeads.length === offer.heads && visibleHeads[0] !== MEAN && visibleHeads.length > 1;
    pressChips(this.parts.chips, (head) => {
      if (head === "all") return isAll;
      return head === MEAN ? visibleHeads[0] === MEAN : visibleHeads.includes(Number(head));
    });
  }

  /** @param {Selection} selection */
  updateOptions({ options, residual }) {
    const { parts, state } = this;
    setPressed(parts.specials, options.specials);
    pressValue(parts.layouts, options.layout);
    pressValue(parts.directions, options.direction);
    setPressed(parts.fit, options.fit);
    setPressed(parts.renormalize, options.renormalize);
    setPressed(parts.colors, options.root);
    const offer = state?.offer;
    parts.renormalize.disabled = Boolean(offer?.shares) && options.specials;
    parts.renormalize.title = parts.renormalize.disabled
      ? "Rows already sum to 1 while special tokens are visible"
      : "Divides each row by its sum, so that rows can be compared";
    parts.residual.value = String(offer?.residuals.indexOf(residual) ?? 0);
    parts.residualText.textContent = `Residual share ${residual}`;
    parts.residual.setAttribute("aria-valuetext", parts.residualText.textContent);
  }

  /** Updates the threshold for lines. @param {number | null} step @param {string} minWeight */
  updateThreshold(step, minWeight) {
    const { parts } = this;
    parts.threshold.value = String(step === null ? -1 : parts.steps.indexOf(step));
    parts.thresholdText.textContent = step === null ? "Strongest lines: half" : `Lines from ${minWeight}`;
    parts.threshold.setAttribute("aria-valuetext", parts.thresholdText.textContent);
  }

  /** In a narrow toolbar, moves all controls except layer and heads behind "More". */
  foldControls() {
    const { parts, state } = this;
    const isNarrow = parts.root.clientWidth < WIDE;
    parts.root.classList.toggle("narrow", isNarrow);
    const container = isNarrow ? parts.popover : parts.row;
    if (parts.choices.parentElement !== container) {
      if (isNarrow) parts.popover.prepend(parts.choices);
      else parts.row.insertBefore(parts.choices, parts.more);
    }
    const hasFolded =
      isNarrow && [parts.words, parts.specials, parts.measure].some((control) => !control.hidden);
    parts.more.hidden = !hasFolded && !state?.offer.more.length;
  }

  // Listeners of the controls

  listen() {
    const { parts } = this;
    parts.down.onclick = () => this.stepLayer(-1);
    parts.up.onclick = () => this.stepLayer(1);
    parts.layer.onkeydown = (event) => this.handleLayerKey(event);
    parts.chips.onclick = (event) => {
      const chip = event.target instanceof Element ? event.target.closest(".chip") : null;
      if (chip instanceof HTMLElement) this.selectHead(chip, event.shiftKey || this.isAdding);
    };
    parts.several.onclick = () => {
      this.isAdding = !this.isAdding;
      setPressed(parts.several, this.isAdding);
    };
    parts.chips.onkeydown = (event) => this.handleChipKey(event);
    parts.words.onclick = () => {
      this.onChange({ words: !this.selection.words, pins: { side: "query", units: [] } }, true);
    };
    parts.specials.onclick = () => this.setOptions({ specials: !this.selection.options.specials });
    parts.measure.onchange = () => this.onChange({ measure: parts.measure.value }, true);
    parts.layouts.onclick = (event) => {
      const layout = getButtonValue(event);
      if (layout === "columns" || layout === "reading") this.setOptions({ layout });
    };
    parts.directions.onclick = (event) => {
      const direction = getButtonValue(event);
      if (direction) this.setOptions({ direction });
    };
    parts.fit.onclick = () => this.setOptions({ fit: !this.selection.options.fit });
    parts.renormalize.onclick = () => this.setOptions({ renormalize: !this.selection.options.renormalize });
    parts.colors.onclick = () => this.setOptions({ root: !this.selection.options.root });
    parts.threshold.oninput = () =>
      this.setOptions({ step: parts.steps[Number(parts.threshold.value)] ?? null }, false);
    parts.threshold.onchange = () => this.setOptions({});
    parts.residual.onchange = () => {
      const residual = this.state?.offer.residuals[Number(parts.residual.value)];
      if (residual !== undefined) this.onChange({ residual }, true);
    };
    parts.popover.ontoggle = () => this.placePopover();
  }

  /** @returns {Selection} */
  get selection() {
    if (!this.state) throw new Error("The toolbar has no data yet.");
    return this.state.selection;
  }

  /** @param {Partial<Options>} option */
  setOptions(option, isFinal = true) {
    this.onChange({ options: { ...this.selection.options, ...option } }, isFinal);
  }

  /** @param {number} by */
  stepLayer(by) {
    this.goToLayer(this.selection.layer + by);
  }

  /** @param {number} target */
  goToLayer(target) {
    const layer = clampLayer(target, this.state?.offer.layers ?? 1);
    if (layer !== this.selection.layer) this.onChange({ layer }, true);
  }

  /** @param {KeyboardEvent} event */
  handleLayerKey(event) {
    const { layer } = this.selection;
    const targets = { ArrowLeft: layer - 1, ArrowDown: layer - 1, ArrowRight: layer + 1, ArrowUp: layer + 1 };
    const target = lookUp({ ...targets, Home: 1, End: Number.POSITIVE_INFINITY }, event.key);
    if (target === undefined) return;
    event.preventDefault();
    this.goToLayer(target);
  }

  /** @param {HTMLElement} chip @param {boolean} several */
  selectHead({ dataset: { head } }, several) {
    const { heads: count, several: may } = /** @type {ToolbarState} */ (this.state).offer;
    const { heads } = this.selection;
    if (head === MEAN) this.onChange({ heads: [MEAN] }, true);
    else if (head === "all") this.onChange({ heads: Array.from({ length: count }, (_, i) => i) }, true);
    else this.onChange({ heads: several && may ? toggleHead(heads, Number(head)) : [Number(head)] }, true);
  }

  /** @param {KeyboardEvent} event */
  handleChipKey(event) {
    const chips = /** @type {HTMLElement[]} */ ([...this.parts.chips.children]);
    const focusedIndex = chips.findIndex((chip) => chip.matches(":focus"));
    const target = lookUp(
      { ArrowLeft: focusedIndex - 1, ArrowRight: focusedIndex + 1, Home: 0, End: chips.length - 1 },
      event.key,
    );
    if (target !== undefined) {
      event.preventDefault();
      chips[clampIndex(target, chips.length)].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.selectHead(chips[focusedIndex], event.shiftKey || this.isAdding);
      chips[focusedIndex].focus();
    }
  }

  /** Positions the popover below its button, within the window. */
  placePopover() {
    const { popover, more } = this.parts;
    const open = popover.matches(":popover-open");
    more.setAttribute("aria-expanded", String(open));
    if (!open) return;
    const [anchor, box] = [more.getBoundingClientRect(), popover.getBoundingClientRect()];
    const left = Math.max(8, Math.min(anchor.right - box.width, window.innerWidth - box.width - 8));
    Object.assign(popover.style, { left: `${left}px`, top: `${anchor.bottom + 6}px` });
  }
}

/**
 * Returns the value of the button that triggered an event.
 *
 * @param {Event} event
 * @returns {string | undefined}
 */
function getButtonValue(event) {
  return event.target instanceof HTMLElement ? event.target.dataset.value : undefined;
}
