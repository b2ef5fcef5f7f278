// The shell: finds the view that the address names, fetches its module, and shows it if the key has the scope.
//
// A view exports `words` ({ en, zh }), `title` (a key of its words) and `show(root, context)`, which fills `root` and
// returns what cleans up after it. A change of language or route cleans up and shows anew; what should outlive that, a
// view keeps in its module.

import * as api from "./api.js";
import { signIn } from "./sign-in.js";
import { failureBox, h, show } from "./dom.js";
import { forget, key, needed } from "./key.js";
import { speaker } from "./words.js";

const VIEWS = { play: "use", api: "use", errors: "", runs: "admin", plan: "admin", models: "admin", service: "admin" };
const RETRY_MS = 3000;
const find = (id) => document.getElementById(id);
const main = find("main"),
  outage = find("outage");

let language = document.documentElement.lang.startsWith("zh") ? "zh" : "en";
let t = speaker(language);
let scopes = null; // null: not fetched yet, or refused
let refused = null; // the code with which the server refused the last key
let leave = () => undefined;
let turn = 0; // counts showings, so that a slow one does not overwrite a later one
let again = () => undefined; // shows the failed view again
let waiting = null; // the timer of the next check whether the server is back

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  return { name: name || "play", rest: rest.filter(Boolean) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const go = (to) => {
  location.hash = `#/${to}`;
};

async function open({ focus = true } = {}) {
  const mine = (turn += 1);
  leave();
  leave = () => undefined;
  const { name, rest } = route();
  if (!(name in VIEWS)) return close(h("h1", {}, t("noSuchView")), h("p", {}, h("a", { href: "#/play" }, t("backToStart"))));
  if (scopes === null && !(await enter(mine, VIEWS[name] === "")) && VIEWS[name]) return;
  if (mine !== turn) return;
  navigate(name);
  if (VIEWS[name] && !scopes.includes(VIEWS[name])) return forbid(name);
  show(main, h("p", { class: "hint waits" }, t("loading")));
  try {
    const view = await import(`./view-${name}.js`).catch((error) => {
      throw api.lost(error);
    });
    if (mine !== turn) return;
    await fill(view, rest, mine, focus);
  } catch (failure) {
    if (mine === turn && failure.name !== "AbortError") broken(failure);
  }
}

async function fill(view, rest, mine, focus) {
  const own = speaker(language, view.words);
  const place = h("div", { class: "view" });
  show(main, place);
  document.title = `${own(view.title)} · Windlass`;
  if (focus) main.focus({ preventScroll: true });
  const ended = await view.show(place, { api, t: own, language, scopes: scopes ?? [], rest, go, announce });
  if (mine === turn) leave = ended ?? leave;
  else ended?.();
}

/** Fetch the scopes of the key; false when the sign-in form is shown instead. An `open` view needs no key. */
async function enter(mine, open) {
  if (needed() && !key()) return open ? false : shut(refused);
  try {
    ({ scopes } = await api.call("/v1/key"));
    refused = null;
  } catch (failure) {
    if (mine !== turn || open) return false;
    if (!needed()) return broken(failure);
    return shut({ 401: "unauthorized", 403: "forbidden", 0: "unreachable" }[failure.status] ?? "other");
  }
  return true;
}

function shut(reason) {
  leave();
  leave = () => undefined;
  scopes = null;
  refused = reason;
  if (reason === "unauthorized") forget();
  navigate(route().name);
  document.title = `${t("signIn")} · Windlass`;
  signIn(main, {
    t,
    reason,
    enter: () => {
      refused = null;
      open();
    },
  });
  return false;
}

function forbid(name) {
  const held = scopes.join(", ") || t("none");
  document.title = `${t(name)} · Windlass`;
  close(
    h("h1", {}, t(name)),
    h(
      "div",
      { class: "failure", role: "alert" },
      h("p", {}, h("strong", {}, t("notForYou"))),
      h("p", {}, t("notForYouHint", { scope: VIEWS[name], scopes: held })),
    ),
  );
}

function broken(failure) {
  // A browser may cache that a module could not be fetched; only a reload fetches it again for certain.
  again = failure.module ? () => location.reload() : () => open({ focus: false });
  close(failureBox(failure, t), h("div", {}, h("button", { type: "button", on: { click: again } }, t("retry"))));
  return false;
}

function close(...children) {
  show(main, h("div", { class: "view stack" }, children));
}

/** List the views that this key may see; the one that is open is marked. */
function navigate(current) {
  const held = scopes ?? [];
  show(
    find("views"),
    Object.entries(VIEWS)
      .filter(([, scope]) => !scope || held.includes(scope))
      .map(([name]) => h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, t(name)))),
  );
  find("sign-out").hidden = !key();
}

function announce(text) {
  find("live").textContent = "";
  // A screen reader reads changes only: clear the text first, in case the next one is the same.
  setTimeout(() => {
    find("live").textContent = text;
  }, 30);
}

/** A refused key leads to the sign-in form; a server that does not answer is shown above everything. */
function onStatus(status) {
  if (status === "well") return recover();
  if (status.code === "unauthorized" && scopes !== null) return void shut("unauthorized");
  if (status.code !== "unreachable" || waiting) return;
  outage.textContent = t("outage");
  outage.hidden = false;
  const look = async () => {
    waiting = setTimeout(look, RETRY_MS);
    await api.call("/healthz").catch(() => undefined);
  };
  waiting = setTimeout(look, RETRY_MS);
}

function recover() {
  if (!waiting) return;
  clearTimeout(waiting);
  waiting = null;
  outage.hidden = true;
  announce(t("back"));
  if (main.querySelector(":scope > .view > .failure")) again();
}

function dress() {
  const theme = localStorage.getItem("windlass-theme") ?? "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const icon = { auto: "◐", light: "☀", dark: "☾" }[theme];
  show(find("theme"), h("span", { "aria-hidden": "true" }, icon), h("span", { class: "unseen" }, t(`theme_${theme}`)));
  find("theme").title = t(`theme_${theme}`);
}

function repaint() {
  const next = { auto: "light", light: "dark", dark: "auto" }[localStorage.getItem("windlass-theme") ?? "auto"];
  if (next === "auto") localStorage.removeItem("windlass-theme");
  else localStorage.setItem("windlass-theme", next);
  dress();
  announce(t(`theme_${next}`));
}

function translate() {
  t = speaker(language);
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  const other = find("language");
  other.textContent = language === "en" ? "中文" : "English";
  other.lang = language === "en" ? "zh-CN" : "en";
  find("skip").textContent = t("skip");
  find("nav").setAttribute("aria-label", t("views"));
  find("sign-out").textContent = t("signOut");
  if (!outage.hidden) outage.textContent = t("outage");
  dress();
}

find("language").addEventListener("click", () => {
  language = language === "en" ? "zh" : "en";
  localStorage.setItem("windlass-language", language);
  translate();
  open({ focus: false });
});
find("theme").addEventListener("click", repaint);
find("sign-out").addEventListener("click", () => {
  forget();
  shut(null);
});
find("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => open());
api.watch(onStatus);
translate();
open({ focus: false });
