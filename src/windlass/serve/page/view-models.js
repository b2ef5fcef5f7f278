// Models: versions with lineage and metrics, which is in production, and roll-outs (view-models-rollouts.js).

import { chart, lines } from "./chart.js";
import { confirm } from "./dialog.js";
import { h, show as put } from "./dom.js";
import { figuresFor } from "./figures.js";
import { button, chip, dress, panel, refresh, repeat, table } from "./panels.js";
import { isEnded, rollouts, startRollout } from "./view-models-rollouts.js";
import { words } from "./view-models-words.js";

const LOOK_EVERY_MS = 4000;
const MODELS = "/admin/control/v1/models";

export { words };
export const title = "title";

export async function show(root, context) {
  const { api, t, language, announce } = context;
  await dress();
  const format = figuresFor(language), ending = new AbortController();
  const wrong = h("div", {}), done = h("p", { role: "status", class: "done" });
  const place = h("div", { class: "stack" }), rolled = h("div", {});
  put(root, h("h1", {}, t("title")), h("p", { class: "lead" }, t("intro")), wrong, done, rolled, place);
  const drawn = [];

  async function look() {
    const get = (path) => api.call(path, { signal: ending.signal });
    const [{ models }, list] = await Promise.all([get(MODELS), stored(get("/admin/rollouts"))]);
    const more = { ...context, tell, again: looking.now, drawn, rolls: list !== null };
    refresh(place, models, () => {
      for (const each of drawn.splice(0)) each.close();
      return models.length ? models.map((model) => shown(model, format, more)) : h("p", { class: "hint" }, t("none"));
    });
    rolled.className = list?.data.some((each) => !isEnded(each)) ? "" : "later";
    refresh(rolled, list, () => list && panel(t("rollouts"), rollouts(list.data, format, more)));
  }

  function tell(text) {
    done.textContent = text;
    announce(text);
  }

  const looking = repeat(look, wrong, t, LOOK_EVERY_MS);
  await looking.now();
  return () => { looking.end(); ending.abort(); for (const each of drawn) each.close(); };
}

/** A gateway that runs alone keeps no records; that is no failure of this view. */
async function stored(promise) {
  try {
    return await promise;
  } catch (failure) {
    if (failure.code === "not_found") return null;
    throw failure;
  }
}

function shown(model, format, context) {
  const { t } = context;
  const newest = [...model.versions].reverse();
  const heads = ["version", "registered", "weights", "loss", "perplexity", "precision", "size", "from", "actions"];
  return panel(model.name, standing(model, context),
    table(model.name, heads.map((word) => t(word)), newest.map((each) => row(each, model, format, context))),
    losses(model, format, context), newest.map((each) => lineage(each, t, format)));
}

/** Which version is in production, which was before, and the way back. */
function standing(model, context) {
  const { t } = context, { prod, previous } = model.aliases;
  return h("p", { class: "row" },
    h("span", { class: "hint" }, t("prodIs")), prod ? chip(`${model.name}@${prod}`, "good") : h("span", {}, t("prodNone")),
    previous ? [h("span", { class: "hint" }, t("previous")), chip(`${model.name}@${previous}`)] : null,
    prod && previous ? button(t("rollback"), () => rollBack(model, context), "small") : null);
}

function row(version, model, format, context) {
  const { t } = context, { metrics, registered } = version;
  return [
    h("span", { class: "row tight" }, version.model,
      version.aliases.map((alias) => chip(`@${alias}`, alias === "prod" ? "good" : "plain"))),
    registered ? format.when(Date.parse(registered) / 1000) : "–", format.count(version.parameters),
    format.number(metrics?.loss ?? null), format.number(metrics?.perplexity ?? null), version.precision || "–",
    format.bytes(version.bytes), origin(version, t),
    h("span", { class: "row tight" },
      version.version === model.aliases.prod ? null : button(t("promote"), () => promote(version, model, context), "small"),
      context.rolls && !version.adapter_of ? button(t("rollOut"), () => startRollout(version.model, context), "small") : null),
  ];
}

async function promote(version, model, { api, t, tell, again }) {
  const now = model.aliases.prod;
  const answer = await confirm({
    t, title: t("promoteTitle", { model: version.model }), yes: t("promoteYes"),
    says: [t("promoteSays", { name: model.name, version: version.version }), now ? t("promoteWas", { version: now }) : null],
    work: () => api.call(`${MODELS}/${encodeURIComponent(model.name)}/promote`, { body: { version: version.version } }),
  });
  if (answer) { tell(t("promoted", answer)); await again(); }
}

async function rollBack(model, { api, t, tell, again }) {
  const answer = await confirm({
    t, title: t("rollbackTitle", { name: model.name }), says: [t("rollbackSays", model.aliases)], yes: t("rollbackYes"),
    grave: true,
    work: () => api.call(`${MODELS}/${encodeURIComponent(model.name)}/rollback`, { method: "POST" }),
  });
  if (answer) { tell(t("rolledBack", answer)); await again(); }
}

/** Where a version comes from, in a few words. */
function origin(version, t) {
  const { lineage: from } = version;
  if (version.adapter_of) return t("adapterOf", { model: version.adapter_of });
  if (from.compressed) return t("compressedFrom", from.compressed);
  if (!from.job) return t("imported");
  const start = from.job.model?.start_from ?? from.start_from;
  return start ? `${t("startFrom")} ${start}` : t("trainedBy", { job: from.job.name ?? "" });
}

function losses(model, format, { t, drawn }) {
  const points = model.versions.filter((each) => each.metrics?.loss).map((each) => [each.version, each.metrics.loss]);
  if (points.length < 2) return null;
  const picture = chart({ title: t("lossByVersion"), words: { table: t("asTable") }, height: 170 });
  picture.element.classList.add("narrow");
  drawn.push(picture);
  picture.draw(lines({
    x: { label: t("version"), format: (value) => (Number.isInteger(value) ? String(value) : "") },
    y: { label: t("loss"), format: format.number },
    series: [{ name: t("heldOutLoss"), tone: 1, points, dots: true }],
  }));
  return picture.element;
}

function lineage(version, t, format) {
  const { lineage: from, metrics } = version;
  const corpus = [from.corpus, from.corpus_digest && `(${from.corpus_digest.slice(0, 12)})`].filter(Boolean).join(" ");
  const facts = [
    ["job", from.job?.name], ["startFrom", from.job?.model?.start_from ?? from.start_from], ["family", from.shape?.family],
    ["layers", from.shape?.layers], ["width", from.shape?.width], ["steps", from.steps && format.count(from.steps)],
    ["tokens", from.tokens && format.count(from.tokens)], ["corpus", corpus], ["code", from.code],
    ["loss", metrics?.loss && format.number(metrics.loss)],
    ["perplexity", metrics?.perplexity && format.number(metrics.perplexity)],
    ["bitsPerByte", metrics?.bits_per_byte && format.number(metrics.bits_per_byte)],
    ["heldOut", metrics?.tokens && `${format.count(metrics.tokens)} ${t("tokens")}`], ["digest", version.digest],
  ].filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("details", {}, h("summary", {}, `${version.model} · ${t("lineage")}`),
    h("dl", { class: "facts" }, facts.map(([word, value]) => [h("dt", {}, t(word)), h("dd", {}, String(value))])));
}
