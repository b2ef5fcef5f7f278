// The state of a run, as a word and a bar.

import { h } from "./dom.js";
import { chip } from "./panels.js";

const KINDS = { running: "good", paused: "warn", stopped: "warn", finished: "plain", new: "plain" };

export const stateChip = (state, t) => chip(t(`state_${state}`), KINDS[state]);

/** A bar with its numbers: step 120 of 1,000. */
export function progress(job, t, format) {
  const words = t("ofSteps", { step: format.count(job.step), steps: format.count(job.effective.steps) });
  return h("span", { class: "progress" },
    h("progress", { max: job.effective.steps, value: job.step, "aria-label": words }), h("span", {}, words));
}
