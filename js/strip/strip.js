// The token strip component: each token is a pill. Its roving tabindex keeps one pill in the tab order, and arrow keys
// move between pills.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { clampIndex, lookUp } from "../core/canvas_view.js";
import { Choice } from "../core/choice.js";
import { element, togglePopover } from "../core/dom.js";
import { createMount } from "../core/mount.js";
import { makeVisible } from "../core/text.js";
import { readTheme } from "../core/theme.js";

/**
 * The data from `views/text.py`.
 *
 * @typedef {object} StripData
 * @property {{text: string, position: number, kind: string, joined: boolean, detail: string, mark: string, number: string}[]}
 *   pieces
 * @property {string} key
 * @property {string} of name of the text to which the tokens belong
 * @property {string} digest hash of the tokens
 * @property {string} label
 * @property {boolean} row whether all tokens are in one scrollable row
 * @property {boolean} selectable
 * @property {number} revision revision of the server's selection
 * @property {number | null} selected selected position that the server has sent
 */

class StripView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** @type {StripData | null} */
    this.data = null;
    /** @type {HTMLElement[]} */
    this.pills = [];
    this.current = 0;
    /** @type {Choice<{position: number | null}>} */
    this.choice = new Choice();
    this.tip = element("div", { class: "tip", popover: "manual", role: "tooltip" });
    root.after(this.tip);
    root.onpointerover = (event) => this.showTip(findPill(event));
    root.onpointerleave = () => this.showTip(null);
    root.addEventListener("focusin", (event) => {
      const pill = findPill(event);
      if (pill?.matches(":focus-visible")) this.showTip(pill);
    });
    root.addEventListener("focusout", () => this.showTip(null));
    root.onscroll = () => this.showTip(null);
    root.addEventListener("wheel", (event) => this.scrollRow(event), { passive: false });
    root.onclick = (event) => this.click(findPill(event));
    root.onkeydown = (event) => this.handleKey(event);
  }

  get pieces() {
    return this.data?.pieces ?? [];
  }

  /**
   * @param {import("../core/mount.js").Component<StripData>} component
   * @returns {undefined}
   */
  update({ data, setStateValue }) {
    const before = this.data;
    this.data = data;
    this.choice.onChange = (report) => setStateValue("token", report);
    const { key, of, revision, selected } = data;
    const previous = this.choice.current;
    this.choice.receive(key, { revision, of, position: selected });
    const isNewText = before?.digest !== data.digest || before?.selectable !== data.selectable;
    if (isNewText) this.build(data);
    this.setTints();
    this.updatePills();
    if (isNewText || previous?.position !== this.choice.current?.position) this.reveal();
  }

  /** @param {StripData} data */
  build({ pieces, row, selectable, label }) {
    this.root.classList.toggle("row", row);
    this.root.setAttribute("role", selectable ? "radiogroup" : "list");
    this.root.setAttribute("aria-label", label);
    /** @type {HTMLElement[]} */
    const words = [];
    this.pills = pieces.map((piece) => {
      const text = makeVisible(piece.text);
      const pill = element("span", { class: `piece ${piece.kind} ${piece.mark}`, tabindex: "-1" }, text);
      pill.setAttribute("role", selectable ? "radio" : "listitem");
      pill.setAttribute("aria-label", piece.detail ? `${text}, ${piece.detail}` : text);
      if (piece.number) pill.append(element("span", { class: "number" }, piece.number));
      if (!piece.joined || !words.length)
        words.push(element("span", { class: "word", role: "presentation" }));
      words[words.length - 1].append(pill);
      return pill;
    });
    this.root.replaceChildren(...words);
    this.current = Math.max(
      0,
      pieces.findIndex((piece) => piece.mark === "partner"),
    );
    this.showTip(null);
  }

  setTints() {
    const theme = readTheme(this.root).isDark ? "dark" : "light";
    for (const [name, tints] of Object.entries(constants.segments)) {
      this.root.style.setProperty(`--tint-${name.toLowerCase()}`, tints[theme]);
    }
  }

  /** Index of the selected pill, or -1. */
  get selectedIndex() {
    const position = this.choice.current?.position ?? null;
    return position === null ? -1 : this.pieces.findLastIndex((piece) => piece.position <= position);
  }

  /** Marks the selected pill, and puts exactly one pill into the tab order. */
  updatePills() {
    const { selectedIndex } = this;
    if (selectedIndex >= 0) this.current = selectedIndex;
    this.pills.forEach((pill, i) => {
      pill.tabIndex = i === this.current ? 0 : -1;
      if (this.data?.selectable) pill.setAttribute("aria-checked", String(i === selectedIndex));
    });
  }

  /** Scrolls the strip, but not the page, to the selected pill. */
  reveal() {
    const pill = this.pills[this.current].getBoundingClientRect();
    const box = this.root.getBoundingClientRect();
    if (pill.bottom > box.bottom || pill.top < box.top) {
      this.root.scrollTop += pill.top - box.top - (box.height - pill.height) / 2;
    }
    if (pill.right > box.right || pill.left < box.left) {
      this.root.scrollLeft += pill.left - box.left - (box.width - pill.width) / 2;
    }
  }

  /** @param {number} index */
  select(index) {
    if (index === this.selectedIndex) return;
    this.choice.choose({ position: this.pieces[index].position });
    this.updatePills();
  }

  /** @param {HTMLElement | null} pill */
  click(pill) {
    if (pill && this.data?.selectable) this.select(this.pills.indexOf(pill));
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      this.showTip(null);
      return;
    }
    const [before, after, last] = [this.current - 1, this.current + 1, this.pills.length - 1];
    const targets = {
      ArrowLeft: before,
      ArrowUp: before,
      ArrowRight: after,
      ArrowDown: after,
      Home: 0,
      End: last,
    };
    const target = lookUp(targets, event.key);
    if (target !== undefined) this.moveTo(clampIndex(target, this.pills.length));
    else if (event.key === " " || event.key === "Enter") this.click(this.pills[this.current]);
    else return;
    event.preventDefault();
  }

  /** @param {number} index */
  moveTo(index) {
    this.current = index;
    this.updatePills();
    this.pills[index].focus();
    if (this.data?.selectable) this.select(index);
  }

  /** Scrolls a row horizontally with a vertical mouse wheel, until the end of the row. @param {WheelEvent} event */
  scrollRow(event) {
    if (!this.data?.row || event.deltaX || event.ctrlKey) return;
    const before = this.root.scrollLeft;
    this.root.scrollLeft += event.deltaY;
    if (this.root.scrollLeft !== before) event.preventDefault();
  }

  /** Shows the tooltip of a pill in the top layer, so that nothing clips it. @param {HTMLElement | null} pill */
  showTip(pill) {
    const detail = pill && this.pieces[this.pills.indexOf(pill)].detail;
    this.tip.textContent = detail || "";
    togglePopover(this.tip, Boolean(detail));
    if (pill && detail) this.placeTip(pill.getBoundingClientRect());
  }

  /** @param {DOMRect} pill */
  placeTip(pill) {
    const tip = this.tip.getBoundingClientRect();
    const left = pill.left + pill.width / 2 - tip.width / 2;
    const above = pill.top - tip.height - 6;
    this.tip.style.left = `${Math.min(Math.max(left, 8), window.innerWidth - tip.width - 8)}px`;
    this.tip.style.top = `${above >= 8 ? above : pill.bottom + 6}px`;
  }
}

/** @param {Event} event @returns {HTMLElement | null} */
function findPill(event) {
  return event.target instanceof Element ? event.target.closest(".piece") : null;
}

export default createMount(".strip", StripView);
