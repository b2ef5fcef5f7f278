// The playground: a prompt in, streamed answers out, and the same request as code.

import { codeTabs } from "./code.js";
import { failureBox, h, select, show as put } from "./dom.js";
import { needed } from "./key.js";
import { Column } from "./play-column.js";
import { meter } from "./play-meter.js";
import { chosen, initial, parameters, settingsPanel, within, wrong } from "./play-settings.js";
import { words } from "./play-words.js";
import { bodySchema, facts, loadDocument, range } from "./schema.js";

export { words };
export const title = "title";

const PATHS = { completion: "/v1/completions", chat: "/v1/chat/completions" };
const EXAMPLES = {
  completion: ["def fibonacci(n):\n", "Once upon a time ", "import "],
  chat: { en: ["What can you do?", "Write a haiku about the sea.", "Explain recursion in one sentence."],
    zh: ["你会做什么？", "写一首关于大海的俳句。", "用一句话解释递归。"] },
};

// What was typed and answered stays when the view is left, or drawn anew in another language.
const kept = { mode: "completion", prompt: "", system: "", logprobs: false, compare: false, values: {}, columns: [] };

export async function show(root, context) {
  const { api, t } = context;
  const described = loadDocument(api);
  described.catch(() => undefined);  // told where it is waited for
  const listed = await api.call("/v1/models");
  const offered = listed.data.filter((each) => each.family !== "bert");
  if (!offered.length) return void put(root, h("h1", {}, t("title")), h("p", { class: "failure", role: "alert" }, t("noModels")));
  const play = new Play(context, offered);
  put(root, play.element);
  play.arrange();
  play.ready = play.settle(described);
  return () => play.end();
}

class Play {
  constructor(context, offered) {
    Object.assign(this, { ...context, offered, description: null });
    for (const n of [0, 1]) {
      kept.columns[n] ??= { turns: [], model: offered[Math.min(n, offered.length - 1)].id };
      if (!offered.some((each) => each.id === kept.columns[n].model)) kept.columns[n].model = offered[0].id;
    }
    this.build();
    this.onKey = (event) => { if (event.key === "Escape") this.stop(); };
    document.addEventListener("keydown", this.onKey);
  }

  /** Typing can begin at once; the settings follow when the server's document is there. */
  async settle(described) {
    try {
      this.description = await described;
      this.arrange();
    } catch (failure) {
      put(this.settings, failureBox(failure, this.t));
    }
  }

  build() {
    const { t } = this;
    this.modes = h("fieldset", { class: "modes" }, h("legend", { class: "unseen" }, t("mode")), ["completion", "chat"].map((mode) =>
      h("label", {}, h("input", { type: "radio", name: "mode", value: mode, checked: kept.mode === mode, on: { change: () => this.switchMode(mode) } }),
        h("span", {}, t(mode)))));
    this.models = h("div", { class: "row models" });
    this.area = h("div", { class: "columns" });
    this.prompt = h("textarea", { id: "prompt", rows: "3", spellcheck: "false", "aria-label": t("prompt"), "aria-describedby": "keys meter", value: kept.prompt,
      on: { input: () => this.typed(), keydown: (event) => this.key(event) } });
    this.trouble = h("p", { class: "failure", role: "alert", hidden: true });
    this.sendButton = h("button", { type: "submit", class: "primary", id: "send" }, t("send"));
    this.stopButton = h("button", { type: "button", id: "stop", hidden: true, on: { click: () => this.stop() } }, t("stop"));
    this.counts = h("p", { class: "hint", id: "meter" });
    this.chips = h("div", { class: "row chips" });
    this.settings = h("div", { class: "stack" });
    this.meter = meter(this.counts, { api: this.api, t, read: () => (this.prompt.value ? this.request(0) : null), amend: (body) => this.amend(body) });
    this.code = codeTabs(() => this.sample(), this);
    this.element = h("div", { class: "stack" },
      h("div", { class: "row" }, h("h1", {}, t("title")), this.modes, h("span", { class: "push" }), this.models),
      h("div", { class: "split" }, this.left(), this.right()));
  }

  left() {
    const { t } = this;
    return h("div", { class: "stack" },
      this.area,
      h("form", { class: "composer stack tight", novalidate: true, on: { submit: (event) => { event.preventDefault(); this.send(); } } },
        this.chips, this.trouble, this.prompt,
        h("div", { class: "row" }, this.counts, h("span", { class: "push" }),
          h("button", { type: "button", class: "quiet", id: "clear", on: { click: () => this.clear() } }, t("clear")), this.stopButton, this.sendButton),
        h("p", { class: "hint unseen", id: "keys" }, t("keys"))),
      h("section", { class: "stack tight share", "aria-labelledby": "code-title" },
        h("div", { class: "row" }, h("h2", { id: "code-title" }, t("code")), h("span", { class: "hint" }, t(needed() ? "codeHint" : "codeHintOpen"))), this.code));
  }

  right() {
    const { t } = this;
    const logprobs = h("input", { type: "checkbox", id: "logprobs", checked: kept.logprobs, on: { change: () => { kept.logprobs = logprobs.checked; this.changed(); } } });
    return h("aside", { class: "card stack settings", "aria-label": t("settings") },
      h("div", { class: "row" }, h("h2", {}, t("settings")), h("button", { type: "button", class: "quiet small push", on: { click: () => this.reset() } }, t("reset"))),
      h("label", { class: "check" }, logprobs, t("logprobs")), this.settings);
  }

  /** Draw what depends on the mode and the models. */
  arrange() {
    const { t } = this;
    const path = PATHS[kept.mode];
    this.parameters = this.description ? parameters(this.description, path).map((each) => within(each, this.model(0))) : [];
    for (const each of this.parameters) kept.values[each.name] ??= initial(each, this.model(0));
    settingsPanel(this.settings, this.parameters, kept.values, { t, changed: () => this.changed() });
    if (kept.mode === "chat") this.settings.prepend(this.systemField());
    this.drawModels();
    this.columns = kept.columns.slice(0, kept.compare ? 2 : 1).map((state) => new Column(state, { ...this, label: kept.compare,
      title: t("answerOf", { model: state.model }), empty: t(kept.mode === "chat" ? "emptyChat" : "emptyCompletion") }));
    put(this.area, this.columns.map((column) => column.element));
    const examples = kept.mode === "chat" ? EXAMPLES.chat[this.language] : EXAMPLES.completion;
    put(this.chips, h("span", { class: "hint" }, t("examples")), examples.map((text) =>
      h("button", { type: "button", class: "chip", on: { click: () => this.take(text) } }, text.trim())));
    this.chips.hidden = kept.columns.some((column) => column.turns.length);
    this.changed();
  }

  drawModels() {
    const { t } = this;
    const choices = this.offered.map((each) => [each.id, each.context_length ? `${each.id} · ${t("context", [each.context_length])}` : each.id]);
    const chooser = (n, label) => select({ value: kept.columns[n].model, "aria-label": label, id: `model-${n}`,
      on: { change: (event) => this.changeModel(n, event.target.value) } }, choices);
    const both = this.offered.length > 1 || kept.compare;
    put(this.models, chooser(0, t("model")), kept.compare ? chooser(1, t("second")) : null,
      both ? h("button", { type: "button", class: "quiet", id: "compare", "aria-pressed": String(kept.compare), on: { click: () => this.compare() } },
        t(kept.compare ? "compareOff" : "compare")) : null);
  }

  systemField() {
    const { t } = this;
    const input = h("textarea", { id: "system", rows: "2", value: kept.system, "aria-describedby": "system-about", on: { input: () => { kept.system = input.value; this.changed(); } } });
    return h("div", { class: "field" }, h("label", { for: "system" }, t("system")), input, h("span", { class: "hint", id: "system-about" }, t("systemHint")));
  }

  model(n) {
    return this.offered.find((each) => each.id === kept.columns[n].model);
  }

  /** The request of a column, as it would be sent now. */
  request(n, asked = this.prompt.value) {
    const path = PATHS[kept.mode], { turns, model } = kept.columns[n];
    const body = { model, ...this.asked(turns, asked), ...chosen(this.parameters ?? [], kept.values), ...this.sureness(path), stream: true,
      stream_options: { include_usage: true } };
    return { method: "POST", path, body };
  }

  asked(turns, text) {
    if (kept.mode === "completion") return { prompt: text };
    const before = turns.filter((turn) => turn.content).map(({ role, content }) => ({ role, content }));
    const system = kept.system ? [{ role: "system", content: kept.system }] : [];
    return { messages: [...system, ...before, { role: "user", content: text }] };
  }

  /** How to ask for log-probabilities, as far as the document allows. */
  sureness(path) {
    if (!kept.logprobs || !this.description) return {};
    const schema = bodySchema(this.description, this.description.paths[path].post);
    const name = schema.properties.top_logprobs ? "top_logprobs" : "logprobs";
    const most = Math.min(5, facts(this.description, name, schema.properties[name]).most ?? 5);
    return name === "logprobs" ? { logprobs: most } : { logprobs: true, top_logprobs: most };
  }

  sample() {
    const text = this.prompt?.value || kept.asked || EXAMPLES.completion[0];
    const request = this.request(0, text);
    const { stream_options: _, ...body } = request.body;
    return { ...request, body };
  }

  async send() {
    if (this.running) return;
    this.tell("");
    await this.ready;
    const asked = this.prompt.value, bad = wrong(this.parameters, kept.values);
    if (asked === "") return this.tell(this.t("emptyPrompt"), this.prompt);
    if (bad) return this.tell(this.t("badSetting", { name: this.t.own(`p_${bad.name}`) ?? bad.name, range: range(bad, this.t) }),
      this.settings.querySelector(`[data-parameter="${bad.name}"]`));
    const requests = this.columns.map((_, n) => this.request(n));
    this.busy(true);
    kept.asked = asked;
    if (kept.mode === "chat") this.empty();
    await Promise.all(this.columns.map((column, n) => column.ask(requests[n].path, requests[n].body, column.begin(asked, kept.mode))));
    const answered = kept.columns.slice(0, this.columns.length).some((column) => column.turns.at(-1)?.content);
    if (!answered) for (const column of this.columns) column.takeBack();
    if (!answered && !this.prompt.value) this.prompt.value = kept.prompt = asked;
    this.busy(false);
    this.changed();
  }

  busy(is) {
    this.running = is;
    this.sendButton.disabled = is;
    this.stopButton.hidden = !is;
    this.chips.hidden = true;
    for (const each of this.element.querySelectorAll(".modes input, .models select, .models button")) each.disabled = is;
  }

  key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  }

  typed() {
    kept.prompt = this.prompt.value;
    this.changed();
  }

  take(text) {
    this.prompt.value = text;
    this.typed();
    this.prompt.focus();
  }

  empty() {
    this.prompt.value = kept.prompt = "";
  }

  changed() {
    this.code.refresh();
    this.meter.changed();
  }

  amend(body) {
    for (const each of this.parameters) {
      if (each.name in body) kept.values[each.name] = each.name === "stop" ? [body.stop].flat().join("\n") : body[each.name];
    }
    this.arrange();
  }

  reset() {
    kept.values = {};
    kept.system = "";
    this.arrange();
  }

  switchMode(mode) {
    kept.mode = mode;
    this.clear();
    this.arrange();
  }

  changeModel(n, id) {
    kept.columns[n].model = id;
    this.columns[n]?.clear();
    this.arrange();
  }

  compare() {
    kept.compare = !kept.compare;
    this.stop();
    for (const column of kept.columns) { column.turns.length = 0; column.told = null; }
    this.arrange();
    this.models.querySelector("#compare").focus();
  }

  stop() {
    for (const column of this.columns) column.stop();
  }

  clear() {
    for (const column of this.columns) column.clear();
    for (const column of kept.columns) { column.turns.length = 0; column.told = null; }
    this.tell("");
    this.chips.hidden = false;
    this.prompt.focus();
    this.changed();
  }

  tell(message, focus) {
    this.trouble.textContent = message;
    this.trouble.hidden = message === "";
    focus?.focus();
  }

  end() {
    this.stop();
    this.meter.end();
    document.removeEventListener("keydown", this.onKey);
  }
}
