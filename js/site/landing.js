// The animation on the landing page: a live head view in which the pin moves from token to token.

import "./code.js";
import { post } from "./frames.js";

const STEP = 1100; // milliseconds per token
const frame = /** @type {HTMLIFrameElement} */ (document.querySelector("#moving iframe"));
const button = /** @type {HTMLButtonElement} */ (document.getElementById("play"));
/** The scenes: a layer, from 1, and heads, from 0. @type {{layer: number, heads: number[], caption: string}[]} */
const scenes = JSON.parse(frame.dataset.scenes ?? "[]");
const place = document.getElementById("scene");
const tokenCount = Number(frame.dataset.tokens);
const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;

let scene = 0;
let token = 1; // start after [CLS]
let timer = 0;

function step() {
  const { layer, heads, caption } = scenes[scene];
  if (place) place.textContent = caption;
  post(frame, { selection: { layer, heads, words: false, pins: { side: "query", units: [token] } } });
  token++;
  if (token < tokenCount - 1) return;
  token = 1;
  scene = (scene + 1) % scenes.length;
}

/** @param {boolean} isPlaying */
function setPlaying(isPlaying) {
  clearInterval(timer);
  // While the animation runs, the view is inert: it cannot be focused, and screen readers do not read each step.
  frame.toggleAttribute("inert", isPlaying);
  button.textContent = isPlaying ? "Pause and explore" : "Play";
  button.setAttribute("aria-pressed", String(isPlaying));
  if (isPlaying) timer = window.setInterval(step, STEP);
}

button.hidden = false;
button.addEventListener("click", () => setPlaying(!frame.inert));
document.getElementById("moving")?.addEventListener("pointerdown", (event) => {
  if (event.target !== button && frame.inert) setPlaying(false);
});
setPlaying(!isStill);
