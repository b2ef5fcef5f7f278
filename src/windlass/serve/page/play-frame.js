// The playground's elements: where the answers, the composer, the settings and the code stand.

import { codeTabs } from "./code.js";
import { h, select, show as put } from "./dom.js";
import { needed } from "./key.js";
import { meter } from "./play-meter.js";
import { kept, request, sample } from "./play-request.js";

/** Make everything that stays while models and modes change, as properties of `play`. */
export function build(play) {
  const { t } = play;
  play.modes = h(
    "fieldset",
    { class: "modes" },
    h("legend", { class: "unseen" }, t("mode")),
    ["completion", "chat"].map((mode) =>
      h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: "mode",
          value: mode,
          checked: kept.mode === mode,
          on: { change: () => play.switchMode(mode) },
        }),
        h("span", {}, t(mode)),
      ),
    ),
  );
  play.models = h("div", { class: "row models" });
  play.area = h("div", { class: "columns" });
  play.prompt = h("textarea", {
    id: "prompt",
    rows: "3",
    spellcheck: "false",
    "aria-label": t("prompt"),
    "aria-describedby": "keys meter",
    value: kept.prompt,
    on: { input: () => play.typed(), keydown: (event) => play.key(event) },
  });
  play.trouble = h("p", { class: "failure", role: "alert", hidden: true });
  play.sendButton = h("button", { type: "submit", class: "primary", id: "send" }, t("send"));
  play.stopButton = h("button", { type: "button", id: "stop", hidden: true, on: { click: () => play.stop() } }, t("stop"));
  play.counts = h("p", { class: "hint", id: "meter" });
  play.chips = h("div", { class: "row chips" });
  play.settings = h("div", { class: "stack" });
  play.meter = meter(play.counts, {
    api: play.api,
    t,
    read: () => (play.prompt.value ? request(play, 0) : null),
    amend: (body) => play.amend(body),
  });
  play.code = codeTabs(() => sample(play), play);
  play.element = h(
    "div",
    { class: "stack" },
    h("div", { class: "row" }, h("h1", {}, t("title")), play.modes, h("span", { class: "push" }), play.models),
    h("div", { class: "split" }, left(play), right(play)),
  );
}

function left(play) {
  const { t } = play;
  return h(
    "div",
    { class: "stack" },
    play.area,
    h(
      "form",
      {
        class: "composer stack tight",
        novalidate: true,
        on: {
          submit: (event) => {
            event.preventDefault();
            play.send();
          },
        },
      },
      play.chips,
      play.trouble,
      play.prompt,
      h(
        "div",
        { class: "row" },
        play.counts,
        h("span", { class: "push" }),
        h("button", { type: "button", class: "quiet", id: "clear", on: { click: () => play.clear() } }, t("clear")),
        play.stopButton,
        play.sendButton,
      ),
      h("p", { class: "hint unseen", id: "keys" }, t("keys")),
    ),
    h(
      "section",
      { class: "stack tight share", "aria-labelledby": "code-title" },
      h(
        "div",
        { class: "row" },
        h("h2", { id: "code-title" }, t("code")),
        h("span", { class: "hint" }, t(needed() ? "codeHint" : "codeHintOpen")),
      ),
      play.code,
    ),
  );
}

function right(play) {
  const { t } = play;
  const logprobs = h("input", {
    type: "checkbox",
    id: "logprobs",
    checked: kept.logprobs,
    on: {
      change: () => {
        kept.logprobs = logprobs.checked;
        play.changed();
      },
    },
  });
  return h(
    "aside",
    { class: "card stack settings", "aria-label": t("settings") },
    h(
      "div",
      { class: "row" },
      h("h2", {}, t("settings")),
      h("button", { type: "button", class: "quiet small push", on: { click: () => play.reset() } }, t("reset")),
    ),
    h("label", { class: "check" }, logprobs, t("logprobs")),
    play.settings,
  );
}

/** The choice of one model, or of two. */
export function drawModels(play) {
  const { t } = play;
  const choices = play.offered.map((each) => [
    each.id,
    each.context_length ? `${each.id} · ${t("context", [each.context_length])}` : each.id,
  ]);
  const chooser = (n, label) =>
    select(
      {
        value: kept.columns[n].model,
        "aria-label": label,
        id: `model-${n}`,
        on: { change: (event) => play.changeModel(n, event.target.value) },
      },
      choices,
    );
  const both = play.offered.length > 1 || kept.compare;
  put(
    play.models,
    chooser(0, t("model")),
    kept.compare ? chooser(1, t("second")) : null,
    both
      ? h(
          "button",
          {
            type: "button",
            class: "quiet",
            id: "compare",
            "aria-pressed": String(kept.compare),
            on: { click: () => play.compare() },
          },
          t(kept.compare ? "compareOff" : "compare"),
        )
      : null,
  );
}

/** The system message. */
export function systemField(play) {
  const { t } = play;
  const input = h("textarea", {
    id: "system",
    rows: "2",
    value: kept.system,
    "aria-describedby": "system-about",
    on: {
      input: () => {
        kept.system = input.value;
        play.changed();
      },
    },
  });
  return h(
    "div",
    { class: "field" },
    h("label", { for: "system" }, t("system")),
    input,
    h("span", { class: "hint", id: "system-about" }, t("systemHint")),
  );
}
