// Elements of a component. User text only ever arrives as text, never as markup.

/**
 * An element with attributes and children; a string among them becomes text.
 *
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} name
 * @param {Record<string, string>} attributes
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[N]}
 */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/**
 * @param {string} title
 * @param {string} text
 */
export function button(title, text) {
  return element("button", { type: "button", title, "aria-label": title }, text);
}

/**
 * Buttons or the like that belong together.
 *
 * @param {string} label
 * @param {...(Node | string)} children
 */
export function group(label, ...children) {
  return element("div", { class: "group", role: "group", "aria-label": label }, ...children);
}

/** What a screen reader is told, seen by nobody. */
export function liveRegion() {
  return element("p", { class: "unseen", "aria-live": "polite" });
}

/** @param {string} text */
export function keyboardHelp(text) {
  return element("p", { class: "unseen", id: "help" }, text);
}

/** The canvas that takes pointer, focus and keys. @param {string} name */
export function stageCanvas(name) {
  return element("canvas", { class: name, tabindex: "0", role: "application", "aria-describedby": "help" });
}

/**
 * The canvas' context.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser draws nothing.");
  return context;
}

/**
 * Makes a canvas as large as this in CSS pixels, at the resolution of the screen.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @param {number} ratio
 */
export function sizeCanvas(canvas, width, height, ratio) {
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
}

/**
 * Shows or hides what lies in the browser's top layer; an element that was just taken out of the page has none.
 *
 * @param {HTMLElement} popover
 * @param {boolean} open
 */
export function toggle(popover, open) {
  if (popover.isConnected) popover.togglePopover(open);
}
