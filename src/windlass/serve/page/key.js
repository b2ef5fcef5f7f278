// The key: asked for when the service wants one, kept for this tab alone, sent with every request.

import { say } from "./words.js";

const PLACE = "windlass-key";
const find = (id) => document.getElementById(id);
const door = find("door"), told = find("door-error"), leave = find("sign-out");

/** The headers that say who asks; none without a key. */
export function headers() {
  const key = sessionStorage.getItem(PLACE);
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Show the way in, with the reason when a key was refused. */
export function shut(reason) {
  if (reason === "unauthorized") sessionStorage.removeItem(PLACE);
  told.dataset.reason = reason ?? "";
  told.hidden = !reason;
  door.hidden = false;
  find("ask").hidden = true;
  find("model").textContent = "";
  leave.hidden = true;
  repeat();
  find("key").focus();
}

/** Show the page itself. */
export function pass() {
  door.hidden = true;
  find("ask").hidden = false;
  leave.hidden = !sessionStorage.getItem(PLACE);
}

/** Say the reason once more, in the language that was chosen. */
export function repeat() {
  told.textContent = say(told.dataset.reason) ?? "";
}

/** Call `enter` with every key that is given, `left` when the key is forgotten. */
export function watch(enter, left) {
  door.addEventListener("submit", (event) => {
    event.preventDefault();
    const key = find("key").value.trim();
    if (!/^[\x21-\x7e]+$/.test(key)) return shut("noKey");
    sessionStorage.setItem(PLACE, key);
    find("key").value = "";
    enter();
  });
  leave.addEventListener("click", () => {
    sessionStorage.removeItem(PLACE);
    left();
    shut();
  });
  for (const link of document.querySelectorAll("[data-guarded]")) link.addEventListener("click", show);
}

/** A link cannot carry a key: fetch what it leads to, and show that in a tab of its own. */
async function show(event) {
  if (!headers().authorization) return;
  event.preventDefault();
  const tab = window.open("about:blank");
  const response = await fetch(event.currentTarget?.href ?? event.target.href, { headers: headers() });
  const text = new Blob([await response.text()], { type: "text/plain;charset=utf-8" });
  if (tab) tab.location = URL.createObjectURL(text);
}
