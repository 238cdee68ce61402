// Mounts a view: one instance per element, updated on every change of data or theme.

/**
 * The arguments that Streamlit passes to a component.
 *
 * @template Data
 * @typedef {object} Component
 * @property {ParentNode} parentElement
 * @property {Data} data
 * @property {(name: string, value: unknown) => void} setStateValue stores a value
 * @property {(name: string, value: unknown) => void} [setTriggerValue] sends a value once
 * @property {(layer: number) => Promise<Uint8Array>} [fetchLayer] if layers do not come from the server
 * @property {(listener: (wish: any) => void) => void} [listenTo] registers a callback for views set from outside
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
