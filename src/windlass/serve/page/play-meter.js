// What a request would take, while it is typed: its tokens, its time, and what it leaves of the quota.

import { h, show } from "./dom.js";

const WAIT_MS = 250;

/** A line that follows the request; `read` returns { path, body }, or null while there is nothing to count. */
export function meter(place, { api, t, read, amend }) {
  let timer = null,
    running = null;
  async function look() {
    running?.abort();
    const asked = read();
    if (!asked) return show(place);
    running = new AbortController();
    try {
      const { stream: _, stream_options: __, ...body } = asked.body;
      const told = await api.call("/v1/dry-run", { body: { route: asked.path, body }, signal: running.signal });
      show(place, told.fits ? foreseen(told, t) : refused(told.error, t, amend));
    } catch (failure) {
      if (failure.name !== "AbortError") show(place);
    }
  }
  return {
    changed: () => {
      clearTimeout(timer);
      timer = setTimeout(look, WAIT_MS);
    },
    end: () => {
      clearTimeout(timer);
      running?.abort();
    },
  };
}

function foreseen(told, t) {
  const whole = told.prompt_tokens + told.max_tokens;
  const parts = [
    h("strong", {}, t("countedOf", { tokens: told.prompt_tokens, context: told.context_length })),
    t("atMost", { tokens: whole }),
    told.cost ? t("costs", { price: money(told.cost) }) : null,
    told.first_token_s === null ? null : t("first", { seconds: seconds(told.first_token_s) }),
    told.whole_s === null ? null : t("takes", { seconds: seconds(told.whole_s) }),
    ...["tokens_minute", "tokens_day"].map((kind) =>
      scarcest(
        told.quota.filter((each) => each.kind === kind),
        t,
      ),
    ),
  ].filter(Boolean);
  return h(
    "span",
    { title: told.cost ? t("costsAbout") : t("priceless") },
    parts.flatMap((part, n) => (n ? [" · ", part] : [part])),
  );
}

/** Of budgets of one kind (all, tenant, key) the one with the least left after the request. */
function scarcest(budgets, t) {
  if (!budgets.length) return null;
  const share = Math.min(...budgets.map(({ left, capacity, needed }) => Math.max(0, (left - needed) / capacity)));
  return t("share", { percent: `${Math.floor(share * 1000) / 10}%`, kind: t(`kind_${budgets[0].kind}`) });
}

function refused(error, t, amend) {
  return h(
    "span",
    { class: "refused" },
    t("willNot"),
    " ",
    error.message,
    " ",
    error.corrected
      ? h("button", { type: "button", class: "quiet small", on: { click: () => amend(error.corrected) } }, t("useCorrected"))
      : null,
  );
}

function money({ maximum, currency }) {
  const form = { style: "currency", currency, maximumSignificantDigits: 2 };
  return new Intl.NumberFormat(document.documentElement.lang, form).format(maximum);
}

const seconds = (value) => (value < 1 ? value.toFixed(2) : value.toFixed(1));
