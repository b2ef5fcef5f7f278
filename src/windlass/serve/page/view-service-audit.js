// The audit log, newest first, with whether it is still as it was written.

import { h, show as put } from "./dom.js";
import { button, chip, table } from "./panels.js";

const PAGE = 25, MOST = 1000;

export function auditLog(get, t, format) {
  const verdict = h("p", { class: "row", role: "status" }), rows = h("div", {});
  const older = button(t("older"), () => { shown = Math.min(MOST, shown + PAGE); return look(); }, "quiet");
  let shown = PAGE;

  async function look() {
    const found = await get("/admin/audit/verify");
    put(verdict, chip(found.ok ? "✓" : "!", found.ok ? "good" : "wrong"),
      found.ok ? t("auditOk", { records: format.count(found.records) }) : h("strong", {}, t("auditBad")),
      found.ok ? null : h("span", { class: "hint", lang: "en" }, found.reasons.join("; ")));
    const { data } = await get(`/admin/audit?after=${Math.max(0, found.last - shown)}&limit=${shown}`);
    put(rows, table(t("audit"), ["number", "at", "who", "action", "target", "result", "note"].map((word) => t(word)),
      [...data].reverse().map((each) => [String(each.number), format.when(each.at_ms / 1000),
        h("span", { title: each.address }, each.who), h("code", {}, each.action), each.target, each.result,
        each.note && h("span", { class: "hint", lang: "en" }, each.note)]),
      t("noAudit")));
    older.hidden = found.last - shown < found.first || shown >= MOST;
  }

  const again = button(t("verify"), look, "quiet small");
  return { element: h("div", { class: "stack" }, h("div", { class: "row" }, verdict, again), rows, older), look };
}
