// One run: its curves while they grow, what was predicted, where the time went, what went wrong, and its control.

import { h, show as put } from "./dom.js";
import { figuresFor } from "./figures.js";
import { panel, refresh } from "./panels.js";
import { changes, controls } from "./view-runs-control.js";
import { audit, comparison, generationTable, head, history, incidents, reasons, samples, settings } from "./view-runs-parts.js";
import { pictures } from "./view-runs-pictures.js";
import { NEWS, begin, follow } from "./view-runs-story.js";

const DRAW_EVERY_MS = 250, LOOK_AFTER_MS = 400, ACCOUNT_EVERY_MS = 10000;
const PARTS = ["head", "control", "answers", "compare", "goodput", "incidents", "samples", "settings", "history", "generations"];

export async function showRun(root, context, [name, number]) {
  const { api, t, language } = context;
  const base = `/admin/control/v1/jobs/${encodeURIComponent(name)}/${encodeURIComponent(number)}`;
  const ending = new AbortController(), { signal } = ending;
  const format = figuresFor(language), story = begin(), see = pictures(t, format);
  const place = Object.fromEntries(PARTS.map((part) => [part, h("div", {})]));
  const requests = [];    // what was requested here, and what the journal says about it
  const timers = {};
  let job, goodput, trouble;

  const read = (path = "") => api.call(`${base}${path}`, { signal });
  async function look() {
    [job, goodput, { incidents: trouble }] = await Promise.all([read(), read("/goodput"), read("/incidents")]);
    const { state, elastic, effective, settings: held, requested: pending, history: past, generations } = job;
    refresh(place.control, [state, elastic, effective, pending, past], () => panel(t("control"),
      h("div", { class: "row" }, controls(job, base, context, record)),
      ["stopped", "new"].includes(state) ? h("p", { class: "hint" }, t("stoppedHint")) : null));
    refresh(place.incidents, trouble, () => panel(t("incidents"), incidents(trouble, t, format)));
    refresh(place.settings, [effective, held, pending], () => settings(job, t, format));
    refresh(place.history, past, () => history(job, t, format));
    refresh(place.generations, generations, () => generationTable(job, t, format));
    see.spend(goodput);
    draw();
  }

  function draw() {
    see.draw(story, job);
    refresh(place.head, [job.state, job.step, story.last], () => head(job, story, t, format));
    refresh(place.compare, [job.state, goodput, story.last, story.evaluations.at(-1)], () => comparison(job, story, goodput, t, format));
    refresh(place.samples, [story.samples.length, story.samples.at(-1)], () => panel(t("samples"), samples(story.samples, t)));
    for (const request of requests) request.outcome = answerTo(request, story, t) ?? request.outcome;
    refresh(place.answers, requests, () => (requests.length ? h("ul", { class: "answers" }, requests.map((request) =>
      h("li", {}, request.text, request.outcome ? [" ", h("strong", {}, request.outcome)] : null))) : null));
  }

  /** Take the server's answer to a button; the journal's comes with the records. */
  function record(verb, answer) {
    const runs = ["running", "paused"].includes(job.state);
    if (verb === "scale") requests.unshift({ verb, before: story.scaled?.id ?? 0, text: t("askedWorkers", answer) });
    else requests.unshift({ verb, id: answer.request.id, text: t(runs ? "asked" : "askedLater", answer.request) });
    context.announce(requests[0].text);
    soon("look", 0, look);
  }

  /** Run an action once, a little later; the shell shows what the server refuses. */
  function soon(what, after_ms, act) {
    timers[what] ??= setTimeout(async () => {
      timers[what] = null;
      try {
        await act();
      } catch (failure) {
        if (failure.name !== "Failure" && failure.name !== "AbortError") throw failure;
        if (!signal.aborted) soon("look", ACCOUNT_EVERY_MS, look);
      }
    }, after_ms);
  }

  /** Follow the journal; a run that has ended may be started again, so it is looked at now and then. */
  async function watch() {
    await follow(api, base, story, signal, (record) => {
      soon("draw", DRAW_EVERY_MS, draw);
      if (record === null || NEWS.has(record.event)) soon("look", LOOK_AFTER_MS, look);
      else soon("account", ACCOUNT_EVERY_MS, look);
    });
    if (!signal.aborted) soon("again", ACCOUNT_EVERY_MS, () => look().finally(watch));
  }

  await look();
  place.answers.setAttribute("role", "status");
  put(root, h("p", {}, h("a", { href: "#/runs" }, `← ${t("back")}`)), place.head, place.control, place.answers,
    panel(t("curves"), h("div", { class: "pair" }, see.loss.element, see.speed.element)),
    panel(t("comparison"), place.compare, reasons(job, t)), panel(t("goodput"), see.facts, see.time.element),
    place.incidents, place.samples, place.settings, place.history, place.generations, panel(t("audit"), audit(base, api, t)));
  watch();
  return () => { ending.abort(); Object.values(timers).forEach(clearTimeout); see.close(); };
}

/** What the journal says to a request: taken at a step, or refused; undefined while it says nothing. */
function answerTo(request, story, t) {
  if (request.verb === "scale") return story.scaled?.id > request.before ? t("scaledTo", story.scaled) : undefined;
  const record = story.changes.find((change) => change.id >= request.id);
  if (!record) return undefined;
  if (record.refused) return t("refusedBy", { reason: record.refused });
  return t("taken", { step: record.step, what: changes(record.changed, t) || t("takenNothing") });
}
