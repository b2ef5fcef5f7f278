// All runs and their progress; #/runs/NAME/NUMBER is one of them (view-runs-one.js).

import { h, show as put } from "./dom.js";
import { figuresFor } from "./figures.js";
import { dress, layoutName, refresh, repeat, table } from "./panels.js";
import { showRun } from "./view-runs-one.js";
import { progress, stateChip } from "./view-runs-state.js";
import { words } from "./view-runs-words.js";

const LOOK_EVERY_MS = 4000;

export { words };
export const title = "title";

export async function show(root, context) {
  await dress();
  if (context.rest?.length >= 2) return showRun(root, context, context.rest.slice(0, 2));
  return showList(root, context);
}

async function showList(root, { api, t, language }) {
  const format = figuresFor(language), place = h("div", {}), wrong = h("div", {});
  put(root, h("h1", {}, t("title")), h("p", { class: "lead" }, t("intro")), wrong, place);
  const ending = new AbortController();
  const looking = repeat(async () => {
    const { jobs } = await api.call("/admin/control/v1/jobs", { signal: ending.signal });
    refresh(place, jobs, () => listed(jobs, t, format));
  }, wrong, t, LOOK_EVERY_MS);
  await looking.now();
  return () => { looking.end(); ending.abort(); };
}

function listed(jobs, t, format) {
  const rows = [...jobs].reverse().map((job) => [
    h("a", { href: `#/runs/${job.run}` }, job.run),
    stateChip(job.state, t),
    progress(job, t, format),
    format.number(job.validation_loss ?? job.loss),
    format.count(job.tokens_per_s),
    layoutName(job.effective.layout),
  ]);
  return table(t("title"), [t("run"), t("state"), t("progress"), t("loss"), t("speed"), t("layout")], rows, t("none"));
}
