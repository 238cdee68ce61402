// Mounts views. Each element has one view, which is updated when the data or the theme changes.

/** @typedef {import("./selection.js").Selection} Selection */

/**
 * The arguments that Streamlit passes to a component.
 *
 * @template Data
 * @typedef {object} Component
 * @property {ParentNode} parentElement
 * @property {Data} data
 * @property {(name: string, value: unknown) => void} setStateValue stores a value
 * @property {(name: string, value: unknown) => void} [setTriggerValue] sends a value for the next run only
 * @property {(layer: number) => Promise<Uint8Array>} [fetchLayer] returns the payload of a layer, if the page contains
 *   the layers and there is no server
 * @property {(listener: (selection: Partial<Selection>) => void) => void} [onSelectionRequest] registers a callback for
 *   selections that an embedding page sets
 */

/**
 * @template Data
 * @param {string} selector
 * @param {new (root: HTMLElement) => {update(component: Component<Data>): (() => void) | undefined}} View
 * @returns {(component: Component<Data>) => (() => void) | undefined}
 */
export function createMount(selector, View) {
  const views = new WeakMap();
  return (component) => {
    const root = /** @type {HTMLElement} */ (component.parentElement.querySelector(selector));
    if (!views.has(root)) views.set(root, new View(root));
    return views.get(root).update(component);
  };
}
