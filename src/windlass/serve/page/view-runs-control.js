// The buttons of a run: each says in a dialog what it will do, sends the request, and returns the server's answer.

import { confirm } from "./dialog.js";
import { field, h, select, show as put } from "./dom.js";
import { button } from "./panels.js";

const SETTINGS = ["learning_rate", "steps", "micro_batch_sequences", "checkpoint_every", "evaluate_every", "log_every",
  "sync.policy", "sync.every"];
const POLICIES = ["every-step", "local", "timed", "diloco"];
/** What is counted, not learned by gradients, can be stopped and no more. */
const LEARNS = (job) => "learning_rate" in job.effective;
const REPLICATED = (job) => job.elastic || job.effective.replicas > 1;

/** The buttons that make sense as a run stands; `done` hears the verb and the server's answer. */
export function controls(job, base, { api, t }, done) {
  if (job.state === "finished") return [h("p", { class: "hint" }, t("finishedHint"))];
  const post = (verb, body) => api.call(`${base}/${verb}`, { method: "POST", body });
  const ask = async (verb, asked) => {
    const usual = { title: t(`${verb}Title`, { run: job.run }), says: [t(`${verb}Says`)], yes: t(verb).replace("…", "") };
    const answer = await confirm({ t, ...usual, work: () => post(verb), ...asked });
    if (answer !== null) done(verb, answer);
  };
  const runs = ["running", "paused"].includes(job.state);
  const isSetting = (key) => !["paused", "stop"].includes(key);
  const last = [...job.history].reverse().find((each) => Object.keys(each.changed ?? {}).some(isSetting));
  const told = last && changes(last.changed, t);
  return [
    LEARNS(job) && job.state === "running" && button(t("pause"), () => ask("pause")),
    job.state === "paused" && button(t("resume"), () => ask("resume"), "primary"),
    LEARNS(job) && button(t("set"), () => ask("set", setting(job, t, post))),
    (last || job.requested) && button(t("undo"), () =>
      ask("undo", { says: [t("undoSays"), told && t("undoWhat", { what: told })] })),
    job.elastic && button(t("scale"), () => ask("scale", scaling(job, t, post))),
    runs && button(t("stop"), () => ask("stop", { grave: true }), "danger"),
  ].filter(Boolean);
}

/** Settings in a few words: "learning rate 0.0001, steps as planned". */
export function changes(values, t) {
  return Object.entries(values ?? {}).map(([key, value]) => {
    if (key === "paused" || key === "stop") return t(`${key}_${value}`);
    if (value === null) return `${t(`key_${key}`)} ${t("planned")}`;
    return `${t(`key_${key}`)} ${key === "sync" ? value.policy : value}`;
  }).join(", ");
}

function setting(job, t, post) {
  const offered = SETTINGS.filter((key) => !key.startsWith("sync.") || REPLICATED(job));
  const key = select({}, offered.map((each) => [each, t(`key_${each}`)]));
  const value = h("input", { type: "number", step: "any", min: 0, required: true });
  const policy = select({}, POLICIES);
  const now = h("p", { class: "hint" });
  const typed = field(t("value"), value), chosen = field(t("value"), policy), place = h("div", {});
  function fit() {
    const words = key.value === "sync.policy";
    const held = key.value.startsWith("sync.") ? job.effective.sync[key.value.slice(5)] : job.effective[key.value];
    put(place, words ? chosen : typed);
    value.step = key.value === "learning_rate" ? "any" : "1";
    (words ? policy : value).value = held;
    now.textContent = t("inForce", { value: held });
  }
  key.addEventListener("change", fit);
  fit();
  const dotted = () => (key.value.startsWith("sync.") ? key.value : `train.${key.value}`);
  return {
    fields: [field(t("setting"), key), place, now],
    work: () => post("set", { changes: { [dotted()]: key.value === "sync.policy" ? policy.value : value.valueAsNumber } }),
  };
}

function scaling(job, t, post) {
  const workers = h("input", { type: "number", min: 1, max: 65536, step: 1, required: true, value: job.effective.workers });
  return { fields: [field(t("workers"), workers)], work: () => post("scale", { workers: workers.valueAsNumber }) };
}
