// How a page gets a view: one for each mounted element, updated on every data or theme change.

/**
 * What a page hands over, as Streamlit's components do.
 *
 * @template Data
 * @typedef {object} Component
 * @property {ParentNode} parentElement
 * @property {Data} data
 * @property {(name: string, value: unknown) => void} setStateValue keeps a value
 * @property {(name: string, value: unknown) => void} [setTriggerValue] tells of a value once
 * @property {(layer: number) => Promise<Uint8Array>} [fetchLayer] where layers do not come from the server
 * @property {(listener: (wish: any) => void) => void} [listenTo] takes what is called with another thing to show
 */

/**
 * @template {Component<any>} C
 * @param {string} selector
 * @param {new (root: HTMLElement) => {update(component: C): (() => void) | undefined}} View
 * @returns {(component: C) => (() => void) | undefined}
 */
export function mounting(selector, View) {
  const views = new WeakMap();
  return (component) => {
    const root = /** @type {HTMLElement} */ (component.parentElement.querySelector(selector));
    if (!views.has(root)) views.set(root, new View(root));
    return views.get(root).update(component);
  };
}
