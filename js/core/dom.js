// Builders for DOM elements. User text is always inserted as text, never as markup.

/**
 * Creates an element with attributes and children; strings become text nodes.
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

/** Returns whether the main input device can hover, as a mouse can and a touch screen cannot. */
export function hasPointer() {
  return !matchMedia("(hover: none)").matches;
}

/**
 * Returns a group of controls.
 *
 * @param {string} label
 * @param {...(Node | string)} children
 */
export function group(label, ...children) {
  return element("div", { class: "group", role: "group", "aria-label": label }, ...children);
}

/**
 * Returns a group of buttons, only one of which can be active. Each button has the attribute `data-value`.
 *
 * @param {string} label
 * @param {Record<string, string>} options value of a button → its text
 */
export function buttonGroup(label, options) {
  const buttons = Object.entries(options).map(([value, text]) =>
    element("button", { type: "button", "data-value": value }, text),
  );
  return group(label, ...buttons);
}

/** Returns an invisible live region for screen readers. */
export function liveRegion() {
  return element("p", { class: "visually-hidden", "aria-live": "polite" });
}

/** @param {string} text */
export function keyboardHelp(text) {
  return element("p", { class: "visually-hidden", id: "help" }, text);
}

/** Returns the canvas that handles pointer, focus and keyboard. @param {string} name */
export function stageCanvas(name) {
  return element("canvas", { class: name, tabindex: "0", role: "application", "aria-describedby": "help" });
}

/**
 * Returns the 2-D context of a canvas.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function getContext(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser does not support the 2-D canvas.");
  return context;
}

/**
 * Resizes a canvas to a size in CSS pixels, at the resolution of the screen.
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
 * Shows or hides a popover; does nothing for an element that was just removed from the page.
 *
 * @param {HTMLElement} popover
 * @param {boolean} isOpen
 */
export function togglePopover(popover, isOpen) {
  if (popover.isConnected) popover.togglePopover(isOpen);
}
