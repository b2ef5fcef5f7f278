// The planner: what is asked on one side, what comes of it on the other, as soon as a slider rests.

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
  const wrong = h("div", {}), status = h("p", { class: "hint", role: "status" });
  const told = answer({ t, format }, apply);
  const misread = (text) => put(wrong, h("p", { class: "failure", role: "alert" }, t("wrongInput", { text })));
  const asking = form(kept, choices, { t, format, changed, wrong: misread });
  let timer = null, running = null;

  function changed(asked) {
    kept = asked;
    clearTimeout(timer);
    timer = setTimeout(plan, RESTS_MS);
  }

  function apply(next, what) {
    asking.put(next);
    announce(t("applied", { what }));
    asking.element.scrollIntoView({ block: "nearest" });
  }

  async function plan() {
    running?.abort();
    const mine = (running = new AbortController());
    const asked = kept;
    status.textContent = t("searching");
    told.element.setAttribute("aria-busy", "true");
    try {
      const found = await api.call("/admin/control/v1/plan", { body: question(asked), signal: mine.signal });
      put(wrong);
      told.show(found, asked);
      if (asked.sizes) asking.learn({ parameters: found.model.parameters });
      told.element.hidden = false;
      status.textContent = "";
      announce(found.layouts.length ? `${t("time")}: ${format.seconds(found.layouts[0].seconds)}` : t("noSolution"));
    } catch (failure) {
      if (failure.name === "AbortError" || mine.signal.aborted) return;
      status.textContent = "";
      put(wrong, failureBox(failure, t));
    }
    if (mine === running) told.element.removeAttribute("aria-busy");
  }

  told.element.hidden = true;
  put(root, h("h1", {}, t("title")), h("p", { class: "lead" }, t("intro")),
    h("div", { class: "planner" }, asking.element, h("div", { class: "stack" }, wrong, status, told.element)));
  plan();
  return () => { clearTimeout(timer); running?.abort(); told.close(); };
}
