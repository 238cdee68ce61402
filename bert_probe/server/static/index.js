// Runs in Streamlit's page before its own scripts.

// Set Streamlit's base URL. Otherwise, Streamlit first requests paths below the page's path, which logs an error.
Object.assign(window, { __streamlit: { BACKEND_BASE_URL: new URL(".", location.href).href } });

// A page opens at its bare URL and then adds its parameters. The new URL replaces the history entry, so that "Back" leads
// to the previous page. After "Back" or "Forward", no entry is added until the user acts: a run of the page that the user
// left would otherwise remove the entries that follow.
let hasNavigated = false;
for (const type of ["pointerdown", "keydown", "click", "input", "drop"])
  addEventListener(type, () => (hasNavigated = false), true);
const pushState = history.pushState.bind(history);
history.pushState = (state, title, url) => {
  const path = url ? new URL(url, location.href).pathname : null;
  const isBare = path === location.pathname && !location.search;
  if (hasNavigated || isBare) history.replaceState(state, title, url);
  else pushState(state, title, url);
};

// The server draws charts in the colors of the current theme. When the theme changes, this script dispatches a popstate
// event without a change of URL, which makes Streamlit rerun the page and redraw the charts.
const THEME_CHANGE = "theme";
/** @param {Element} app */
const observeTheme = (app) => {
  const readTheme = () => getComputedStyle(app).colorScheme;
  let theme = readTheme();
  new MutationObserver(() => {
    if (readTheme() === theme) return;
    theme = readTheme();
    dispatchEvent(new PopStateEvent("popstate", { state: THEME_CHANGE }));
  }).observe(app, { attributes: true, attributeFilter: ["class"] });
};
// Streamlit never repeats what it could not send when the connection was lost. When the connection returns, this script
// presses Streamlit's key for a rerun, which sends the values of all widgets, if there is a text that the user has typed
// and no run has received, or a request for a run without an answer, and Streamlit itself does not request a run.
// Otherwise, the page stays as it is: after a restart of the server, a run would remove results that are still shown.
// The text of a form is sent only when the form is submitted, and the run could remove it.
let isUnanswered = false;
let isUnsent = false;
/** @type {Element | null} the field whose text Streamlit sends only when the user presses Enter or leaves the field */
let edited = null;
const RUN_REQUEST = 0x5a; // first byte of a request for a run: field 11 of Streamlit's `BackMsg`, a message
/** @type {WebSocket | null} */
let lastUsed = null;
const { send } = WebSocket.prototype;
WebSocket.prototype.send = function (data) {
  if (data instanceof Uint8Array && data[0] === RUN_REQUEST) {
    isUnanswered = true;
    if (!edited?.isConnected) isUnsent = false;
  }
  lastUsed = this;
  send.call(this, data);
};
const TEXT_FIELDS = '[data-testid="stTextInput"], [data-testid="stTextArea"], [data-testid="stNumberInput"]';
addEventListener(
  "input",
  ({ target }) => {
    if (!(target instanceof Element && target.closest(TEXT_FIELDS))) return;
    if (target.closest('[data-testid="stForm"]')) return;
    edited = target;
    isUnsent = true;
  },
  true,
);
addEventListener("focusout", () => (edited = null), true);
addEventListener(
  "keydown",
  ({ key, target, ctrlKey, metaKey }) => {
    if (key === "Enter" && (ctrlKey || metaKey || target instanceof HTMLInputElement)) edited = null;
  },
  true,
);
// Sends the text of a field before a link, or "Back" or "Forward", opens another page. Otherwise, Streamlit sends nothing
// when the field disappears or, after a tap or a very short click, requests the new page first; the text, which it sends as
// that of the old page, would then lead back to the old page.
const SEND_MS = 250; // maximum time to wait; Streamlit sends nothing if the text is the same as before
let isFollowing = false;
/** @param {() => void} open @param {number} end */
const openWhenSent = (open, end) => {
  if (isUnsent && performance.now() < end) {
    requestAnimationFrame(() => openWhenSent(open, end));
    return;
  }
  isFollowing = true;
  open();
  isFollowing = false;
};
const leaveField = () => {
  if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
};
/** Cancels `event`, sends the text of the field and then calls `open`. @param {Event} event @param {() => void} open */
const sendBefore = (event, open) => {
  event.preventDefault();
  event.stopImmediatePropagation();
  leaveField();
  openWhenSent(open, performance.now() + SEND_MS);
};
addEventListener(
  "click",
  (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (!isUnsent || isFollowing || !link?.href || link.target === "_blank") return;
    sendBefore(event, () => {
      const links = [...document.querySelectorAll("a")]; // Streamlit may have replaced the link in the meantime.
      const current = link.isConnected ? link : links.find(({ href }) => href === link.href);
      current?.dispatchEvent(new MouseEvent("click", event)); // with the same keys pressed
    });
  },
  true,
);
const rerun = () => {
  for (const type of ["keydown", "keyup"]) document.dispatchEvent(new KeyboardEvent(type, { key: "r" }));
};
/** @param {Element} app */
const observeConnection = (app) => {
  const isConnected = () => app.getAttribute("data-test-connection-state") === "CONNECTED";
  const isRunning = () => app.getAttribute("data-test-script-state") !== "notRunning";
  let wasConnected = isConnected();
  /** @type {WebSocket | null} */
  let lost = null;
  const attributeFilter = ["data-test-connection-state", "data-test-script-state"];
  new MutationObserver((mutations) => {
    if (wasConnected && !isConnected()) lost = lastUsed;
    wasConnected = isConnected();
    if (wasConnected && lost) {
      const before = lost;
      lost = null;
      // The text of an interrupted field is committed before or after this, and can request the same run again.
      if (isUnanswered || isUnsent) setTimeout(() => lastUsed === before && rerun());
    }
    const hasRun = mutations.some(({ attributeName }) => attributeName === attributeFilter[1]);
    if (hasRun && wasConnected && !isRunning()) isUnanswered = false;
  }).observe(app, { attributes: true, attributeFilter });
};
new MutationObserver((_, observer) => {
  const app = document.querySelector('[data-testid="stApp"]');
  if (!app) return;
  observer.disconnect();
  observeTheme(app);
  observeConnection(app);
}).observe(document, { childList: true, subtree: true });

// Marks "Back" and "Forward" in the URL with a timestamp.
// An old URL alone is ambiguous: a click may be sent before the browser has applied the URL of the previous click.
addEventListener("popstate", (event) => {
  if (event.state === THEME_CHANGE) return;
  hasNavigated = true;
  if (isUnsent && !isFollowing) {
    sendBefore(event, () => dispatchEvent(new PopStateEvent("popstate", event)));
    return;
  }
  const url = new URL(location.href);
  url.searchParams.set("went", String(Date.now()));
  history.replaceState(history.state, "", url);
});

// Passes a file that is dropped outside of all file uploaders to the uploader of view files.
// Without this, the browser would open the dropped file.
/** @param {DragEvent} event @returns {HTMLInputElement | null} */
const findViewFileInput = (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return null;
  const { target } = event;
  if (target instanceof Element && target.closest('[data-testid="stFileUploader"]')) return null;
  return document.querySelector('[class*="st-key-view_upload"] input[type="file"]');
};
addEventListener("dragover", (event) => {
  if (findViewFileInput(event)) event.preventDefault();
});
addEventListener("drop", (event) => {
  const input = findViewFileInput(event);
  if (!input || !event.dataTransfer) return;
  event.preventDefault();
  leaveField(); // sends the text of the field, because the view file opens another page
  input.files = event.dataTransfer.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});

// Clicks an expander or a button even if it moves while the mouse button is pressed. The form in the sidebar moves when
// the page changes, or when the browser has loaded the code of a field. The browser reports no click in this case. A drag,
// which ends elsewhere on the screen, is not a click.
/** @type {{ pressable: HTMLElement, x: number, y: number } | null} */
let pressed = null;
addEventListener(
  "pointerdown",
  ({ target, button, clientX: x, clientY: y }) => {
    const pressable = target instanceof Element && button === 0 ? target.closest("summary, button") : null;
    pressed = pressable instanceof HTMLElement ? { pressable, x, y } : null;
  },
  true,
);
addEventListener(
  "pointerup",
  ({ target, clientX, clientY }) => {
    if (!pressed) return;
    const { pressable, x, y } = pressed;
    pressed = null;
    const hasMoved = target instanceof Node && !pressable.contains(target);
    if (!hasMoved || Math.hypot(clientX - x, clientY - y) >= 4) return;
    // If Streamlit has replaced an expander in the meantime, find the new one by its text. Several buttons may have the
    // same text.
    const isReplaced = !pressable.isConnected && pressable.matches("summary");
    const current = isReplaced
      ? [...document.querySelectorAll("summary")].find(
          ({ textContent }) => textContent === pressable.textContent,
        )
      : pressable;
    current?.click();
  },
  true,
);

// Commits the text of a field that was disabled while the user typed, because the connection was lost. React ignores the
// event that the browser dispatches then, so Streamlit would not send the text, not even with later clicks.
/** @type {EventTarget | null} */
let lastFocused = null;
/** @type {EventTarget | null} */
let interrupted = null;
addEventListener("focusin", ({ target }) => (lastFocused = target), true);
new MutationObserver((mutations) => {
  for (const { target } of mutations) {
    if (!(target instanceof HTMLElement)) continue;
    if (target.matches(":disabled")) {
      if (target === lastFocused) interrupted = target;
    } else if (target === interrupted) {
      interrupted = null;
      target.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
    }
  }
}).observe(document, { subtree: true, attributeFilter: ["disabled"] });

// Text in a form reaches the server only when the form is submitted. While a field differs from its submitted value,
// the page shows "Not run yet", because the figures do not refer to the typed text. Each element with "data-submitted"
// contains the submitted values by widget key; see `ui/blocks.not_run`.
const NOT_RUN = "Not run yet";
const NOT_RUN_PAGE = `${NOT_RUN}: this page still shows the results of the last run.`;
// Streamlit draws a text field before it sets its value, so a new field may be empty for some frames.
const FRAMES = 60;
/** @type {WeakMap<HTMLTextAreaElement, number>} number of frames after which an empty field is really empty */
const remaining = new WeakMap();
/** @param {HTMLTextAreaElement} field */
const countFrame = (field) => {
  const frames = remaining.get(field) ?? 0;
  if (!frames) return markSoon();
  remaining.set(field, frames - 1);
  requestAnimationFrame(() => countFrame(field));
};
/** @param {HTMLTextAreaElement} field */
const hasValue = (field) => {
  if (field.value) remaining.set(field, 0);
  else if (!remaining.has(field)) {
    remaining.set(field, FRAMES);
    requestAnimationFrame(() => countFrame(field));
  }
  return !remaining.get(field);
};
/** Returns the value of a widget in the browser; null if it is not on the page. @param {string} key */
const readValue = (key) => {
  const widget = document.querySelector(`.st-key-${CSS.escape(key)}`);
  const field = widget?.querySelector("textarea, input");
  if (field instanceof HTMLTextAreaElement && !hasValue(field)) return null;
  if (field instanceof HTMLInputElement && field.type === "checkbox") return field.checked ? "on" : "off";
  if (field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement) return field.value;
  return widget?.querySelector('[aria-checked="true"]')?.textContent ?? null;
};
/** @param {[string, unknown]} entry */
const isTyped = ([key, submitted]) => {
  const value = readValue(key);
  return value !== null && value !== submitted;
};
/** @param {Element} element @param {string} text */
const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text; // Screen readers announce every write.
};
const markTyped = () => {
  let isAny = false;
  for (const mark of document.querySelectorAll("[data-submitted]")) {
    const isNotRun = Object.entries(JSON.parse(mark.getAttribute("data-submitted") ?? "{}")).some(isTyped);
    setText(mark, isNotRun ? NOT_RUN : "");
    isAny ||= isNotRun;
  }
  for (const mark of document.querySelectorAll(".not-run-page")) setText(mark, isAny ? NOT_RUN_PAGE : "");
};
// Streamlit marks the open page only within its menu, not the menu itself.
const markSection = () => {
  const open = document.querySelector("[data-section]")?.getAttribute("data-section");
  for (const menu of document.querySelectorAll('[data-testid="stTopNavSection"]')) {
    if (menu.textContent.trim() === open) menu.setAttribute("aria-current", "true");
    else menu.removeAttribute("aria-current");
  }
};
// On a narrow screen Streamlit's sidebar covers the page, and stays open after a run.
// The attribute "data-runs" counts the runs of the form in the sidebar.
const NARROW = matchMedia("(max-width: 768px)");
/** @type {number | null} */
let runs = null;
const closeAfterRun = () => {
  const count = document.querySelector("[data-runs]")?.getAttribute("data-runs");
  if (!count) return;
  const isNew = runs !== null && Number(count) > runs;
  runs = Number(count);
  if (!isNew || !NARROW.matches) return;
  const button = document.querySelector('[data-testid="stSidebarCollapseButton"] button'); // null if closed
  if (button instanceof HTMLElement) button.click();
};
let isMarking = false;
const markSoon = () => {
  if (isMarking) return;
  isMarking = true;
  // Wait for the next frame, because Streamlit updates its fields after the event.
  requestAnimationFrame(() => {
    isMarking = false;
    markTyped();
    markSection();
    closeAfterRun();
  });
};
for (const type of ["input", "change", "click", "keyup", "focusout"]) addEventListener(type, markSoon, true);
// Update the "Not run yet" marks also when the server changes fields or values, and when Streamlit redraws them.
new MutationObserver(markSoon).observe(document, {
  childList: true,
  subtree: true,
  attributeFilter: ["data-runs", "data-section", "data-submitted", "data-test-script-state", "aria-checked"],
});
