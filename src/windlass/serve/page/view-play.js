// The playground: a prompt in, streamed answers out, and the same request as code.

import { failureBox, h, show as put } from "./dom.js";
import { Column } from "./play-column.js";
import { build, drawModels, systemField } from "./play-frame.js";
import { EXAMPLES, PATHS, kept, request } from "./play-request.js";
import { initial, parameters, settingsPanel, within, wrong } from "./play-settings.js";
import { words } from "./play-words.js";
import { loadDocument, range } from "./schema.js";

export { words };
export const title = "title";

export async function show(root, context) {
  const { api, t } = context;
  const listed = await api.call("/v1/models");
  const offered = listed.data.filter((each) => each.family !== "bert");
  if (!offered.length)
    return void put(root, h("h1", {}, t("title")), h("p", { class: "failure", role: "alert" }, t("noModels")));
  const play = new Play(context, offered);
  put(root, play.element);
  play.arrange();
  play.ready = play.settle();
  return () => play.end();
}

class Play {
  constructor(context, offered) {
    Object.assign(this, { ...context, offered, description: null });
    for (const n of [0, 1]) {
      kept.columns[n] ??= { turns: [], model: offered[Math.min(n, offered.length - 1)].id };
      if (!offered.some((each) => each.id === kept.columns[n].model)) kept.columns[n].model = offered[0].id;
    }
    build(this);
    this.onKey = (event) => {
      if (event.key === "Escape") this.stop();
    };
    document.addEventListener("keydown", this.onKey);
  }

  /** Typing can begin at once; the settings follow when the server's document is there. */
  async settle() {
    try {
      this.description = await loadDocument(this.api);
      this.arrange();
    } catch (failure) {
      put(this.settings, failureBox(failure, this.t));
    }
  }

  /** Draw what depends on the mode and the models. */
  arrange() {
    const { t } = this;
    const path = PATHS[kept.mode];
    this.parameters = this.description ? parameters(this.description, path).map((each) => within(each, this.model(0))) : [];
    for (const each of this.parameters) kept.values[each.name] ??= initial(each, this.model(0));
    settingsPanel(this.settings, this.parameters, kept.values, { t, changed: () => this.changed() });
    if (kept.mode === "chat") this.settings.prepend(systemField(this));
    drawModels(this);
    this.columns = kept.columns
      .slice(0, kept.compare ? 2 : 1)
      .map(
        (state) =>
          new Column(state, {
            ...this,
            label: kept.compare,
            title: t("answerOf", { model: state.model }),
            empty: t(kept.mode === "chat" ? "emptyChat" : "emptyCompletion"),
          }),
      );
    put(
      this.area,
      this.columns.map((column) => column.element),
    );
    const examples = kept.mode === "chat" ? EXAMPLES.chat[this.language] : EXAMPLES.completion;
    put(
      this.chips,
      h("span", { class: "hint" }, t("examples")),
      examples.map((text) => h("button", { type: "button", class: "chip", on: { click: () => this.take(text) } }, text.trim())),
    );
    this.chips.hidden = kept.columns.some((column) => column.turns.length);
    this.changed();
  }

  model(n) {
    return this.offered.find((each) => each.id === kept.columns[n].model);
  }

  async send() {
    await this.ready;
    if (this.running) return;
    this.tell("");
    const asked = this.prompt.value,
      bad = wrong(this.parameters, kept.values);
    if (asked === "") return this.tell(this.t("emptyPrompt"), this.prompt);
    if (bad)
      return this.tell(
        this.t("badSetting", { name: this.t.own(`p_${bad.name}`) ?? bad.name, range: range(bad, this.t) }),
        this.settings.querySelector(`[data-parameter="${bad.name}"]`),
      );
    const requests = this.columns.map((_, n) => request(this, n));
    this.busy(true);
    kept.asked = asked;
    if (kept.mode === "chat") this.empty();
    await Promise.all(
      this.columns.map((column, n) => column.ask(requests[n].path, requests[n].body, column.begin(asked, kept.mode))),
    );
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
    for (const column of kept.columns) {
      column.turns.length = 0;
      column.told = null;
    }
    this.arrange();
    this.models.querySelector("#compare").focus();
  }

  stop() {
    for (const column of this.columns) column.stop();
  }

  clear() {
    for (const column of this.columns) column.clear();
    for (const column of kept.columns) {
      column.turns.length = 0;
      column.told = null;
    }
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
