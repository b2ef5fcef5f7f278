// The planner: the request on one side, the plan on the other, as soon as a slider stops.

import { failureBox, h, show as put } from "./dom.js";
import { figuresFor } from "./figures.js";
import { dress } from "./panels.js";
import { answer } from "./view-plan-answer.js";
import { first, form, question } from "./view-plan-form.js";
import { words } from "./view-plan-words.js";

const RESTS_MS = 350;
let kept = null;        // what was last asked, while the page is open

export { words };
export const title = "title";

export async function show(root, { api, t, language, announce }) {
  const [choices] = await Promise.all([api.call("/admin/control/v1/plan/choices"), dress()]);
  const format = figuresFor(language);
  kept ??= first();
  const wrong = h("div", {}), odd = h("div", {}), status = h("p", { class: "hint", role: "status" });
  const brief = h("p", { class: "brief", "aria-hidden": "true" });      // on a phone the answer is far below the sliders
  const told = answer({ t, format }, apply);
  const misread = (text) => put(odd, h("p", { class: "failure", role: "alert" }, t("wrongInput", { text })));
  const asking = form(kept, choices, { t, format, changed, wrong: misread });
  const ending = new AbortController();
  let timer = null, running = false;

  function changed(asked) {
    kept = asked;
    put(odd);
    clearTimeout(timer);
    timer = setTimeout(plan, RESTS_MS);
  }

  function apply(next, what) {
    asking.put(next);
    announce(t("applied", { what }));
    asking.element.scrollIntoView({ block: "nearest" });
  }

  /** Ask for what was last put; while one search runs, no other is begun, for the server would finish both. */
  async function plan() {
    if (running) return;
    running = true;
    const asked = kept;
    status.textContent = t("searching");
    told.element.setAttribute("aria-busy", "true");
    try {
      tell(await api.call("/admin/control/v1/plan", { body: question(asked), signal: ending.signal }), asked);
    } catch (failure) {
      if (ending.signal.aborted) return;
      put(wrong, failureBox(failure, t));
    }
    running = false;
    status.textContent = "";
    told.element.removeAttribute("aria-busy");
    if (asked !== kept) plan();
  }

  function tell(found, asked) {
    put(wrong);
    told.show(found, asked);
    told.element.hidden = false;
    brief.textContent = inShort(found);
    if (asked.sizes) asking.learn({ parameters: found.model.parameters });
    announce(found.layouts.length ? `${t("time")}: ${format.seconds(found.layouts[0].seconds)}` : t("noSolution"));
  }

  function inShort({ layouts: [best] }) {
    if (!best) return t("noSolution");
    const money = best.dollars ? format.dollars(Math.sqrt(best.dollars[0] * best.dollars[1])) : t("unknown");
    return [format.seconds(best.seconds), money, format.bytes(best.memory_bytes)].join(" · ");
  }

  told.element.hidden = true;
  asking.element.append(brief);
  put(root, h("h1", {}, t("title")), h("p", { class: "lead" }, t("intro")),
    h("div", { class: "planner" }, asking.element, h("div", { class: "stack" }, odd, wrong, status, told.element)));
  plan();
  return () => { clearTimeout(timer); ending.abort(); told.close(); };
}
