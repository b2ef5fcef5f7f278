// The charts of a run: loss, throughput, and where the time went. They live as long as the view does.

import { bars, chart, lines } from "./chart.js";
import { h, show as put } from "./dom.js";
import { figure, figures } from "./panels.js";

const KINDS = ["compute", "communication", "data", "checkpoint", "evaluation", "undone", "start", "recovery", "idle",
  "offline", "other"];

export function pictures(t, format) {
  const words = { table: t("asTable") }, facts = h("div", {});
  const loss = chart({ title: t("lossCurve"), words }), speed = chart({ title: t("speedCurve"), words });
  const time = chart({ title: t("goodput"), words, named: false });
  const x = { label: t("step"), format: format.count };
  const points = (records, key) => records.map((each) => [each.step, each[key]]);
  const level = (value, tone) => (value ? [{ name: t("predicted"), tone, value }] : []);

  function draw(story, job) {
    loss.draw(lines({
      x, y: { label: t("nats"), format: format.number }, levels: level(job.predicted.loss, 1),
      series: [{ name: t("training"), tone: 0, points: points(story.steps, "loss") },
        { name: t("heldOut"), tone: 1, points: points(story.evaluations, "loss"), dots: true }],
    }));
    speed.draw(lines({
      x, y: { label: t("tokensPerSecond"), format: format.count, zero: true }, levels: level(job.predicted.tokens_per_s, 2),
      series: [{ name: t("measured"), tone: 2, points: points(story.steps, "tokens_per_s") }],
    }));
  }

  function spend(goodput) {
    const parts = KINDS.map((kind, tone) => ({ name: t(`kind_${kind}`), value: goodput.seconds[kind] ?? 0, tone }));
    const spell = (value) => `${format.seconds(value)} (${format.share(value / (goodput.total_s || 1))})`;
    time.draw(bars({ rows: [{ parts }], format: spell, heads: [t("part"), t("long")] }));
    put(facts,
      figures(figure(t("goodputShare"), format.share(goodput.goodput)), figure(t("goodputTotal"), format.seconds(goodput.total_s))),
      goodput.measured || !goodput.total_s ? null : h("p", { class: "hint" }, t("unmeasured")));
  }

  return { loss, speed, time, facts, draw, spend, close: () => [loss, speed, time].forEach((each) => each.close()) };
}
