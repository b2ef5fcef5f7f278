// What the views for operators are made of: panels, tables, chips, figures, and polling every few seconds.

import { failureBox, h, show } from "./dom.js";

let dressed = null;

/** Fetch the style of these views, once; the first view of the page does without it. */
export function dress() {
  dressed ??= new Promise((resolve) => {
    const link = h("link", { rel: "stylesheet", href: "/page/views.css", on: { load: resolve, error: resolve } });
    document.head.append(link);
  });
  return dressed;
}

/** A part of a view with a heading of its own. */
export function panel(title, ...children) {
  const id = `part-${(panel.count = (panel.count ?? 0) + 1)}`;
  return h("section", { class: "card stack", "aria-labelledby": id }, h("h2", { id }, title), children);
}

/**
 * A table; rows are arrays of text or nodes, the first cell names the row. One of many columns becomes a list of cards where
 * there is no room, which is why the roles are said: a table that is laid out otherwise is none to a screen reader.
 */
export function table(caption, heads, rows, empty) {
  if (!rows.length) return h("p", { class: "hint" }, empty);
  const cell = (content, n) => (n ? h("td", { role: "cell", data: { head: heads[n] } }, h("div", {}, content))
    : h("th", { role: "rowheader", scope: "row" }, content));
  const head = (word) => h("th", { role: "columnheader", scope: "col" }, word);
  return h("div", { class: "scrolls", tabindex: 0, role: "group", "aria-label": caption },
    h("table", { role: "table", class: heads.length > 4 ? "list broad" : "list" },
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map(head))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map(cell))))));
}

/** A number that people look for first. */
export function figure(label, value, note) {
  return h("div", { class: "figure" }, h("dt", {}, label),
    h("dd", {}, h("strong", {}, value), note ? h("span", {}, note) : null));
}

export const figures = (...children) => h("dl", { class: "figures" }, children);

/** A word with a colour; the colour repeats what the word says. */
export const chip = (text, kind = "plain") => h("span", { class: `badge ${kind}` }, text);

export const button = (text, click, kind = "") => h("button", { type: "button", class: kind, on: { click } }, text);

/** A share as a bar; the text next to it has the number. */
export function share(part, kind = "") {
  const width = `${(Math.min(1, Math.max(0, part)) * 100).toFixed(1)}%`;
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("span", { style: { width } }));
}

/** The name of a layout, which may be broken behind its commas. */
export const layoutName = (name) => h("code", {}, name.replaceAll(",", ",\u200b"));

/** How much of something is used: a share that is coloured as it runs out. */
export function used(value, most) {
  const part = most > 0 ? value / most : 0;
  return share(part, part > 0.9 ? "wrong" : part > 0.7 ? "warn" : "good");
}

const drawn = new WeakMap();

/** Rebuild the content of a place when its facts have changed; the keyboard focus stays in it. */
export function refresh(place, facts, build) {
  const text = JSON.stringify(facts);
  if (drawn.get(place) === text) return;
  drawn.set(place, text);
  const held = place.contains(document.activeElement);
  show(place, build());
  if (held) place.querySelector("button, a, input, select, [tabindex]")?.focus({ preventScroll: true });
}

/** Poll now and every few seconds until ended; a failure is shown in `place`, and the next poll tries again. */
export function repeat(look, place, t, every_ms) {
  let timer = null, ended = false, failed = false;
  async function once() {
    clearTimeout(timer);
    try {
      await look();
      if (failed) show(place);
      failed = false;
    } catch (failure) {
      if (failure.name !== "AbortError" && !ended) show(place, failureBox(failure, t));
      failed = true;
    }
    if (!ended) timer = setTimeout(once, every_ms);
  }
  return { now: once, end: () => { ended = true; clearTimeout(timer); } };
}

/** Texts that all of these views share. */
export const shared = {
  en: {
    cancel: "Cancel", close: "Close", asTable: "As a table", never: "never", state: "State", name: "Name", actions: "Actions",
    made: "Made", failure_model_not_found: "There is no such model or version.",
    failure_refused: "This cannot be done.", failure_run_not_found: "There is no such run.",
    failure_in_use: "Another process is using this right now; try again.",
    failure_control_unavailable: "The control process (runs, plans and models) does not answer.",
  },
  zh: {
    cancel: "取消", close: "关闭", asTable: "以表格显示", never: "从不", state: "状态", name: "名称", actions: "操作",
    made: "创建于", failure_model_not_found: "没有这个模型或版本。",
    failure_refused: "无法这样做。", failure_run_not_found: "没有这个训练运行。", failure_in_use: "另一个进程正在使用它，请重试。",
    failure_control_unavailable: "控制进程（训练运行、规划和模型）没有响应。",
  },
};

/** The texts of a view, in front of the shared ones. */
export const words = (en, zh) => ({ en: { ...shared.en, ...en }, zh: { ...shared.zh, ...zh } });
