// Passes messages between a view's frame in a notebook and the kernel. The widget itself is invisible.

/**
 * The used part of anywidget's model.
 *
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 */

/**
 * Listens to the frames with the key of this view, and sends them the views that the kernel sets and the theme of the
 * page. A frame has an opaque origin, so messages are the only connection.
 *
 * @param {{model: Model}} given
 */
function initialize({ model }) {
  const key = model.get("key");
  /** @type {Set<Window>} */
  const frames = new Set();
  const tell = (/** @type {object} */ said) => {
    for (const frame of frames) frame.postMessage({ bertProbe: key, ...said }, "*");
  };
  const theme = () => {
    const light = document.body.dataset.jpThemeLight; // set by JupyterLab and Notebook
    return light === undefined ? {} : { theme: light === "true" ? "light" : "dark" };
  };

  /** @param {MessageEvent} event */
  function listen({ data, source }) {
    if (data?.bertProbe !== key || !source) return;
    if (data.shown) {
      model.set("view", data.shown);
      model.save_changes();
    } else {
      frames.add(/** @type {Window} */ (source));
      tell({ wish: model.get("wish"), ...theme() });
    }
  }

  const watch = new MutationObserver(() => tell(theme()));
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  window.addEventListener("message", listen);
  // Frames that were mounted before announce themselves again.
  for (let i = 0; i < window.frames.length; i++) {
    window.frames[i].postMessage({ bertProbe: key, asked: true }, "*");
  }
  model.on("change:wish", () => tell({ wish: model.get("wish") }));
  return () => {
    window.removeEventListener("message", listen);
    watch.disconnect();
  };
}

export default { initialize };
