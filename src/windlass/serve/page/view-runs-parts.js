// The parts of the view of a run that are words and tables. Input: facts of the control API. Output: elements.

import { h, show as put } from "./dom.js";
import { chip, panel, table } from "./panels.js";
import { changes } from "./view-runs-control.js";
import { progress, stateChip } from "./view-runs-state.js";
import { speedOf } from "./view-runs-story.js";

const SAMPLES = 3, MAX_SAMPLES = 50;

export function head(job, story, t, format) {
  const left = job.state === "running" && story.last?.seconds_left;
  const step = Math.max(job.step, story.last?.step ?? 0);
  return [h("div", { class: "title" }, h("h1", {}, job.run), stateChip(job.state, t)),
    h("div", { class: "row" }, progress({ ...job, step }, t, format),
      left ? h("span", { class: "hint" }, t("left", { time: format.seconds(left) })) : null)];
}

/** The planner's prediction and the measurement. The time of a running run is the time so far plus its own estimate of the rest. */
export function comparison(job, story, goodput, t, format) {
  const { predicted } = job;
  const spent = goodput.total_s - (goodput.seconds.offline ?? 0), left = story.last?.seconds_left;
  const whole = job.state === "finished" ? spent : job.state === "running" && left ? spent + left : null;
  const loss = story.evaluations.at(-1)?.loss ?? job.validation_loss ?? story.last?.loss ?? null;
  const row = (word, was, is, how, none = "–") =>
    [word, how(was), is === null ? none : how(is), was && is ? apart(is / was - 1) : ""];
  return table(t("comparison"), [t("what"), t("predicted"), t("measured"), t("difference")], [
    row(t("speed"), predicted.tokens_per_s, speedOf(story), format.count),
    row(t("time"), predicted.seconds, whole, format.seconds, t("soFar", { time: format.seconds(spent) })),
    row(t("loss"), predicted.loss, loss, format.number),
    row(t("memory"), predicted.memory_bytes, null, format.bytes, t("notMeasured")),
  ]);
}

const apart = (share) => `${share >= 0.005 ? "+" : share <= -0.005 ? "−" : "±"}${Math.abs(share * 100).toFixed(0)}%`;

export function reasons(job, t) {
  if (!job.predicted.reasons?.length) return null;
  return h("details", {}, h("summary", {}, t("reasons")),
    h("ul", { lang: "en" }, job.predicted.reasons.map((each) => h("li", {}, each))));
}

/** What went wrong: in the reader's language from the facts, with the journal's own sentence below. */
export function incidents(all, t, format) {
  if (!all.length) return h("p", { class: "hint" }, t("noIncidents"));
  return h("ol", { class: "incidents" }, [...all].reverse().map((each) => h("li", {},
    h("p", { class: "row" }, h("strong", {}, t(`incident_${each.kind}`)),
      chip(ending(each, t, format), each.over ? "plain" : "wrong"),
      h("span", { class: "hint push" }, format.when(each.time))),
    each.seconds === null ? null : h("p", {}, [each.source && t(`source_${each.source}`),
      each.steps_lost ? t("incidentLost", { steps: each.steps_lost }) : t("incidentNone")].filter(Boolean).join(" · ")),
    h("p", { class: "hint", lang: "en" }, [each.what, each.done].filter(Boolean).join("; ")))));
}

function ending(incident, t, format) {
  if (!incident.over) return t("incidentOpen");
  return incident.seconds === null ? t("incidentNoStop") : t("incidentBack", { time: format.seconds(incident.seconds) });
}

export function samples(all, t) {
  if (!all.length) return h("p", { class: "hint" }, t("noSamples"));
  const newest = [...all].reverse();
  const one = (each) => h("figure", { class: "sample" },
    h("figcaption", {}, t("atStep", { step: each.step })), h("blockquote", {}, each.text));
  return [newest.slice(0, SAMPLES).map(one), newest.length <= SAMPLES ? null :
    h("details", {}, h("summary", {}, t("olderSamples", { count: newest.length - SAMPLES })),
      newest.slice(SAMPLES, MAX_SAMPLES).map(one))];
}

/** The settings that training uses; changed ones are marked, and requested ones that the run has not taken yet. */
export function settings(job, t, format) {
  const facts = Object.entries(job.effective).map(([key, value]) => {
    const wanted = job.requested?.[key];
    const pending = job.requested && key in job.requested && JSON.stringify(wanted) !== JSON.stringify(job.settings[key]);
    return h("div", {}, h("dt", {}, t(`key_${key}`)), h("dd", {}, spell(value, format), " ",
      (job.settings[key] ?? null) === null ? null : chip(t("changed"), "warn"),
      pending ? chip(t("pending", { value: wanted === null ? t("planned") : spell(wanted, format) }), "warn") : null));
  });
  return panel(t("settings"), h("dl", { class: "settings" }, facts));
}

function spell(value, format) {
  if (Array.isArray(value)) return value.join(" + ");
  if (value?.policy) return value.policy === "every-step" ? value.policy : `${value.policy} / ${value.every}`;
  return typeof value === "number" ? format.number(value) : String(value);
}

export function history(job, t, format) {
  const words = (each) => (each.refused ? t("refusedBy", { reason: each.refused })
    : `${each.undoes ? `${t("undoes", { id: each.undoes })}: ` : ""}${changes(each.changed, t) || t("none_changed")}`);
  const rows = [...job.history].reverse().map((each) =>
    [String(each.id), format.when(each.time), String(each.step), each.by ?? "", words(each)]);
  const heads = ["request", "when", "step", "by", "change"].map((word) => t(word));
  return panel(t("history"), table(t("history"), heads, rows, t("noHistory")));
}

/** The workers and the layout of each generation of an elastic run. */
export function generationTable(job, t, format) {
  if (!job.generations.length) return null;
  const rows = [...job.generations].reverse().map((each) =>
    [String(each.generation), format.when(each.time), String(each.members.length), h("span", { lang: "en" }, each.reason)]);
  return panel(t("generations"), table(t("generations"), [t("generation"), t("when"), t("workers"), t("reason")], rows));
}

/** Proves on demand that every sample was used exactly once; to read a long ledger takes a while. */
export function audit(base, api, t) {
  const place = h("p", { class: "row", role: "status" });
  const check = h("button", { type: "button", on: { click: look } }, t("auditRun"));
  async function look() {
    check.disabled = true;
    try {
      const { ok, facts } = await api.call(`${base}/audit`);
      const word = !ok ? "auditBad" : facts.records ? "auditOk" : "auditNone";
      put(place, chip(ok ? "✓" : "!", ok ? "good" : "wrong"), t(word, { count: facts.samples_used, steps: facts.steps }),
        ok ? null : h("span", { class: "hint", lang: "en" }, facts.reasons.join("; ")));
    } catch (failure) {
      put(place, failure.message);
    }
    check.disabled = false;
  }
  return h("div", { class: "row" }, check, place);
}
