// Tokens with their probabilities: tinted by how sure the model was; hovering or focusing one shows its rivals.

import { h, show } from "./dom.js";

const SHOWN = { "\n": "⏎\n", "\t": "⇥\t" };

/** The tokens that an event of a stream carries: [{ text, logprob, rivals: [{ text, logprob }] }]. */
export function scored(choice) {
  const told = choice?.logprobs;
  if (!told) return [];
  if (told.content) {
    return told.content.map((each) => ({
      text: each.token,
      logprob: each.logprob,
      rivals: (each.top_logprobs ?? []).map((rival) => ({ text: rival.token, logprob: rival.logprob })),
    }));
  }
  return (told.tokens ?? []).map((text, n) => ({
    text,
    logprob: told.token_logprobs?.[n] ?? 0,
    rivals: Object.entries(told.top_logprobs?.[n] ?? {}).map(([rival, logprob]) => ({ text: rival, logprob })),
  }));
}

/** One list of tokens with one tab stop; arrow keys move inside. `panel` tells of the token that is looked at. */
export function tokenList(panel, t) {
  const list = h("span", { class: "tokens", role: "listbox", "aria-label": t("tokens"), on: { keydown: move } });
  let current = null;
  function look(element, token) {
    current?.setAttribute("aria-selected", "false");
    current = element;
    element.setAttribute("aria-selected", "true");
    for (const each of list.children) each.tabIndex = each === element ? 0 : -1;
    explain(panel, token, t);
  }
  function move(event) {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (step && event.target[step]) {
      event.preventDefault();
      event.target[step].focus();
    }
  }
  list.add = (told) => {
    const rivals = told.rivals.filter((rival) => rival.text !== told.text).sort((one, other) => other.logprob - one.logprob);
    const token = { ...told, rivals };
    const element = h(
      "span",
      {
        role: "option",
        "aria-selected": "false",
        tabindex: list.children.length ? "-1" : "0",
        class: `token ${grade(token)}`,
        "aria-label": spoken(token, t),
        on: { focus: () => look(element, token), pointerenter: () => look(element, token) },
      },
      SHOWN[token.text] ?? token.text,
    );
    list.append(element);
  };
  return list;
}

export const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  return `${share >= 10 ? Math.round(share) : share >= 0.1 ? share.toFixed(1) : "<0.1"}%`;
};

function explain(panel, token, t) {
  show(
    panel,
    h("code", {}, quoted(token.text)),
    " ",
    h("strong", {}, t("probability", { percent: percent(token.logprob) })),
    token.rivals.length ? h("span", {}, ` · ${t("instead")} `) : null,
    token.rivals.map((rival) => [h("code", {}, quoted(rival.text)), ` ${percent(rival.logprob)}  `]),
  );
}

function spoken(token, t) {
  const rivals = token.rivals.map((rival) => `${quoted(rival.text)} ${percent(rival.logprob)}`).join(", ");
  return `${quoted(token.text)} ${t("probability", { percent: percent(token.logprob) })}${rivals ? `. ${t("instead")} ${rivals}` : ""}`;
}

const quoted = (text) => JSON.stringify(text);

function grade({ logprob }) {
  const share = Math.exp(logprob);
  return share > 0.9 ? "sure" : share > 0.5 ? "likely" : share > 0.15 ? "open" : "unlikely";
}
