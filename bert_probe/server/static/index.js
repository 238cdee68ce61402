// Runs in Streamlit's page before its own scripts.

// Where the server is. Left to itself the page would first look below its own address and leave an error in the console.
window.__streamlit = { BACKEND_BASE_URL: new URL(".", location.href).href };

// A page is opened by its bare address, and its choices follow: one step back should lead to where one came from.
const push = history.pushState.bind(history);
history.pushState = (state, title, url) => {
  const to = new URL(url, location.href);
  if (to.pathname === location.pathname && !location.search) history.replaceState(state, title, url);
  else push(state, title, url);
};

// Pictures that the server draws have the colours of the theme it was told of: in another one they are asked for anew,
// by a step that leads nowhere.
const anew = "theme";
const followTheme = (app) => {
  const theme = () => getComputedStyle(app).colorScheme;
  let drawn = theme();
  new MutationObserver(() => {
    if (theme() === drawn) return;
    drawn = theme();
    dispatchEvent(new PopStateEvent("popstate", { state: anew }));
  }).observe(app, { attributes: true, attributeFilter: ["class"] });
};
new MutationObserver((_, watch) => {
  const app = document.querySelector('[data-testid="stApp"]');
  if (!app) return;
  watch.disconnect();
  followTheme(app);
}).observe(document, { childList: true, subtree: true });

// Back and forward are marked in the address, once each. A click may be sent before the browser has taken over the
// address of the last one, so that an older address alone tells nothing.
addEventListener("popstate", (event) => {
  if (event.state === anew) return;
  const to = new URL(location.href);
  to.searchParams.set("went", String(Date.now()));
  history.replaceState(history.state, "", to);
});

// A file that is dropped anywhere on a page goes where view files are opened, and the browser stays where it is; what takes
// files of its own keeps them.
const taker = (event) =>
  event.dataTransfer?.types.includes("Files") &&
  !event.target.closest?.('[data-testid="stFileUploader"]') &&
  document.querySelector('[class*="st-key-view_upload"] input[type="file"]');
addEventListener("dragover", (event) => {
  if (taker(event)) event.preventDefault();
});
addEventListener("drop", (event) => {
  const input = taker(event);
  if (!input) return;
  event.preventDefault();
  input.files = event.dataTransfer.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
});
