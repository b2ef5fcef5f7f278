// What the planner answered: figures, memory bars, the front, the layouts with their reasons; or why no layout is feasible.

import { bars, chart, cloud } from "./chart.js";
import { h, show as put } from "./dom.js";
import { button, chip, figure, figures, layoutName, panel, table } from "./panels.js";
import { fixed } from "./view-plan-form.js";

const MAX_BARS = 4;
const AFTERWARDS = new Set(["distilled"]);      // a change after training cannot be applied to this request

/** Places for the answer; the charts in them live as long as the view. `apply` takes the request that a fix proposes. */
export function answer({ t, format }, apply) {
  const words = { table: t("asTable") };
  const memory = chart({ title: t("memoryTitle"), words, named: false });
  const front = chart({ title: t("front"), words, height: 300, named: false });
  const facts = h("div", { class: "stack" }), rest = h("div", { class: "stack" });
  const full = panel(t("memoryTitle"), memory.element);
  const choice = panel(t("front"), h("p", { class: "hint" }, t("frontHint")), front.element);
  const element = h("div", { class: "stack" }, facts, full, choice, rest);

  function show(plan, asked) {
    const solved = plan.layouts.length > 0;
    const ways = plan.ways.length ? panel(t("ways"), helps(plan.ways, asked, t, format, apply)) : null;
    put(facts, solved ? summary(plan, t, format) : null, plan.no_solution ? obstacle(plan, asked, t, format, apply) : null);
    full.hidden = !solved;
    choice.hidden = !plan.front.length;
    if (solved) memory.draw(memoryBars(plan.layouts, t, format));
    if (plan.front.length) front.draw(points(plan, t, format));
    put(rest, solved ? [reasons(plan, t), layouts(plan, t, format)] : null, ways, solved ? upkeep(plan, t, format) : null);
  }

  return { element, show, close() { memory.close(); front.close(); } };
}

function summary(plan, t, format) {
  const [best] = plan.layouts, { dollars } = best;
  const range = ([low, high], how) => t("between", { low: how(low), high: how(high) });
  const memory = t("ofLimit", { used: format.bytes(best.memory_bytes), limit: format.bytes(best.limit_bytes) });
  const price = dollars ? format.dollars(Math.sqrt(dollars[0] * dollars[1])) : t("unknown");
  const plain = (value) => value.toFixed(2);
  return panel(t("chosen"),
    h("p", { class: "row" }, layoutName(best.name), chip(`${best.devices} × ${best.device}`),
      chip(best.choices.precision)),
    figures(
      figure(t("time"), format.seconds(best.seconds), range(best.seconds_range, format.seconds)),
      figure(t("money"), price, dollars ? range(dollars, format.dollars) : null),
      figure(t("memory"), format.share(best.memory_bytes / best.limit_bytes), memory),
      best.loss === null ? null : figure(t("loss"), plain(best.loss), best.loss_range ? range(best.loss_range, plain) : null),
      figure(t("speed"), format.count(best.tokens_s)),
      best.kwh === null ? null : figure(t("energy"), `${format.count(best.kwh)} kWh`)));
}

/** Why no layout is feasible, and buttons that apply the fixes that the planner tried. */
function obstacle({ no_solution: none }, asked, t, format, apply) {
  return h("section", { class: "card stack obstacle", role: "alert" },
    h("h2", {}, t("noSolution")), h("p", {}, h("strong", {}, t(`binding_${none.binding}`))),
    h("p", { lang: "en" }, `${none.sentence}.`), h("h3", {}, t("fixes")),
    none.fixes.length ? helps(none.fixes, asked, t, format, apply) : h("p", { class: "hint" }, t("noFixes")));
}

function helps(ways, asked, t, format, apply) {
  const how = { price_h: format.dollars, deadline_s: format.seconds, tokens: format.count };
  const words = ([key, value]) => t.own(`fix_${key}`, { value: how[key]?.(value) ?? value });
  return h("ul", { class: "ways" }, ways.map((way) => {
    const next = AFTERWARDS.has(way.way) ? null : fixed(asked, way.changes);
    const what = Object.entries(way.changes).map(words).filter(Boolean).join(", ");
    return h("li", {}, next && what ? button(`${t("apply")}: ${what}`, () => apply(next, what)) : null,
      h("span", { lang: "en" }, way.sentence));
  }));
}

function memoryBars(all, t, format) {
  const rows = all.slice(0, MAX_BARS).map((layout) => ({
    label: layout.name, limit: layout.limit_bytes,
    parts: Object.entries(layout.memory_parts_bytes).map(([name, value], tone) =>
      ({ name: t.own(`part_${name.replaceAll(" ", "_")}`) ?? name, value, tone })),
  }));
  return bars({ rows, format: format.bytes, limit: t("limit"), heads: [t("layout"), t("part"), t("bytes")] });
}

/** Time against money, or against memory where prices are unknown; a dot's size is the memory. */
function points(plan, t, format) {
  const priced = plan.front.every((each) => each.dollars), key = priced ? "dollars" : "memory_bytes";
  const best = plan.layouts[0], most = Math.max(...plan.front.map((each) => each.memory_bytes), 1);
  const one = (each, front) => {
    const chosen = front && each.name === best?.name && each.devices === best.devices;
    const size = Math.sqrt(Math.min(1, each.memory_bytes / most));
    const cells = [each.name, String(each.devices), format.seconds(each.seconds), format.dollars(each.dollars),
      format.bytes(each.memory_bytes)];
    const tone = chosen ? 0 : front ? 1 : "faint";
    const r = front ? 3.5 + 4 * size : 2 + 2 * size;
    return { x: each.seconds, y: each[key], front, tone, r, text: cells.join(" · "), cells };
  };
  const others = (plan.weighed ?? []).filter((each) => each.seconds > 0 && each[key] > 0);
  const legend = [best && { tone: 0, name: t("chosenPoint") }, { tone: 1, name: t("onFront") },
    others.length && { tone: "faint", name: t("weighed") }].filter(Boolean);
  return cloud({
    x: { label: t("whole"), format: format.seconds, log: true, time: true },
    y: { label: t(priced ? "money" : "bytes"), format: priced ? format.dollars : format.bytes, log: true },
    points: [...others.map((each) => one(each, false)), ...plan.front.map((each) => one(each, true))],
    legend, heads: [t("layout"), t("devices"), t("whole"), t("money"), t("bytes")],
  });
}

function reasons(plan, t) {
  if (!plan.explanation.length) return null;
  return panel(t("why"), h("ul", { lang: "en" }, plan.explanation.map((each) => h("li", {}, each))));
}

function layouts(plan, t, format) {
  const mark = (place) => (place === 0 ? chip(t("chosenPoint"), "live") : place === 1 ? chip(t("runnerUp")) : null);
  const rows = plan.layouts.map((each, place) => [
    h("span", {}, layoutName(each.name), " ", mark(place)), String(each.devices), format.seconds(each.step_s),
    format.seconds(each.seconds), format.count(each.tokens_s),
    `${format.bytes(each.memory_bytes)} (${format.share(each.memory_bytes / each.limit_bytes)})`, format.dollars(each.dollars)]);
  return panel(t("layouts"),
    table(t("layouts"), ["layout", "devices", "step", "whole", "speed", "bytes", "money"].map((word) => t(word)), rows),
    h("p", { class: "hint" }, t("searched", { count: format.count(plan.counted), time: format.seconds(plan.search_s) })));
}

function upkeep({ storage, failures }, t, format) {
  if (!storage && !failures) return null;
  return panel(t("storage"), figures(
    storage ? figure(t("checkpoint"), format.bytes(storage.checkpoint_bytes)) : null,
    failures ? [
      figure(t("failures"), format.number(Number(failures.expected_failures.toPrecision(2)))),
      figure(t("interval"), format.seconds(failures.interval_s)), figure(t("goodput"), format.share(failures.goodput)),
      figure(t("elasticGoodput"), format.share(failures.elastic_goodput)),
    ] : null));
}
