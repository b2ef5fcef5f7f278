// Roll-outs: the state of each with its evidence, and the commands that the service carries out.

import { confirm } from "./dialog.js";
import { field, h, select } from "./dom.js";
import { button, chip, share, table } from "./panels.js";

const KINDS = ["canary", "blue_green", "weights", "shadow"];
const ENDED = { promoted: "good", rolled_back: "wrong", aborted: "warn" };
const MOST = 10;

export const isEnded = (rollout) => rollout.state in ENDED;

export function rollouts(all, format, context) {
  const { t } = context;
  if (!all.length) return h("p", { class: "hint" }, t("noRollouts"));
  return h("ul", { class: "rollouts" }, all.slice(0, MOST).map((each) => h("li", {},
    h("p", { class: "row" },
      h("strong", {}, each.candidate), chip(t(`state_${each.state}`), ENDED[each.state] ?? "live"),
      chip(t(`kind_${each.kind}`).split(/[:：]/)[0]),
      h("span", { class: "hint" }, `${format.when(each.made_s)} · ${each.who}`)),
    h("p", { class: "row" }, share(each.weight), h("span", { class: "hint" }, `${t("part")}: ${format.share(each.weight)}`)),
    each.reason ? h("p", { lang: "en" }, each.reason) : null,
    isEnded(each) ? null : h("p", { class: "row" },
      button(t("finish"), () => command(each, "promote", "finish", context), "small"),
      button(t("abort"), () => command(each, "abort", "abort", context), "small danger")),
    report(each.report, t, format))));
}

export async function startRollout(candidate, { api, t, tell, again }) {
  const kind = select({}, KINDS.map((each) => [each, t(`kind_${each}`)]));
  const answer = await confirm({
    t, title: t("rollOutTitle", { model: candidate }), says: [t("rollOutSays")], yes: t("rollOutYes"),
    fields: [field(t("kind"), kind)],
    work: () => api.call("/admin/rollouts", { body: { candidate, kind: kind.value } }),
  });
  if (answer) { tell(t("rolloutStarted", answer)); await again(); }
}

async function command(rollout, verb, word, { api, t, tell, again }) {
  const answer = await confirm({
    t, title: t(`${word}Title`, rollout), says: [t(`${word}Says`)], yes: t(word).replace("…", ""), grave: true,
    work: () => api.call(`/admin/rollouts/${encodeURIComponent(rollout.id)}/${verb}`, { method: "POST" }),
  });
  if (answer) { tell(t("requested")); await again(); }
}

/** What was found, by criterion (docs/formats/rollout-report.md). */
function report(told, t, format) {
  if (!told?.criteria?.length) return h("p", { class: "hint" }, t("noReport"));
  const evidence = (has, needs) => (has === undefined ? "–" : `${format.number(has)} / ${format.number(needs)}`);
  const heads = ["criterion", "meaning", "comparisons", "mean", "tolerated", "against", "forIt"].map((word) => t(word));
  const rows = told.criteria.map((each) => [
    each.criterion, h("span", { lang: "en" }, each.meaning), format.count(each.comparisons), format.number(each.mean),
    format.number(each.tolerated), evidence(each.against, each.against_needed), evidence(each.for, each.for_needed)]);
  const list = (word, items) => (items?.length
    ? h("p", {}, h("strong", {}, t(word)), ": ", h("span", { lang: "en" }, items.join("; "))) : null);
  return h("details", {}, h("summary", {}, t("report")), list("faults", told.faults), list("alarms", told.alarms),
    table(t("report"), heads, rows));
}
