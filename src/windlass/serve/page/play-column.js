// One column of answers: a model, its conversation, and the stream that is being written into it.

import { failureBox, h, show } from "./dom.js";
import { scored, tokenList } from "./play-tokens.js";

const SLOW_MS = 4000;

/** A column. `state` ({ model, turns }) outlives it: it is drawn again after a change of language. */
export class Column {
  constructor(state, { api, t, announce, title, empty, label }) {
    Object.assign(this, { state, api, t, announce, running: null });
    this.answer = h("div", { class: "answer", tabindex: "0", role: "log", "aria-live": "off", "aria-label": title });
    this.status = h("p", { class: "hint status" });
    this.trouble = h("div", { class: "trouble" });
    this.panel = h("p", { class: "hint lens", hidden: true }, t("pickToken"));
    this.element = h(
      "section",
      { class: "column stack tight", "aria-label": title },
      label ? h("h2", { class: "hint" }, state.model) : null,
      this.answer,
      this.panel,
      this.trouble,
      this.status,
    );
    this.answer.dataset.empty = empty;
    for (const turn of state.turns) this.draw(turn);
    this.status.textContent = state.told ? t(...state.told) : "";
  }

  /** Ask; `turn` is the answer in the making, which `begin` made. Returns when it is over, however it ended. */
  async ask(path, body, turn) {
    this.running = new AbortController();
    const watch = this.watchSilence();
    show(this.trouble);
    this.answer.setAttribute("aria-busy", "true");
    this.tell("waiting");
    try {
      await this.follow(path, body, turn, watch);
    } catch (failure) {
      if (failure.name === "AbortError") this.tell("stopped", { tokens: turn.count });
      else this.fail(failure);
    } finally {
      watch.end();
      turn.place.classList.remove("writing");
      this.answer.setAttribute("aria-busy", "false");
      this.running = null;
    }
  }

  async follow(path, body, turn, watch) {
    const began = performance.now();
    let first = 0,
      reason = null;
    for await (const { data } of this.api.events(path, { body, signal: this.running.signal, until: "[DONE]" })) {
      watch.reset();
      const choice = data.choices?.[0];
      const text = choice?.text ?? choice?.delta?.content ?? "";
      if (text) {
        first ||= performance.now();
        turn.count += 1;
        this.append(turn, text, scored(choice));
        this.tell("writing", { tokens: turn.count, rate: rate(turn.count, first) });
      }
      reason = choice?.finish_reason ?? reason;
      if (data.usage) turn.count = data.usage.completion_tokens;
    }
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    this.tell(reason === "length" ? "cut" : "done", { tokens: turn.count, seconds, rate: rate(turn.count, first) });
    this.announce(this.status.textContent);
  }

  /** Add the question and room for its answer. */
  begin(asked, mode) {
    if (mode === "completion") {
      this.state.turns.length = 0;
      show(this.answer);
    } else {
      this.add({ role: "user", content: asked });
    }
    const turn = this.add({ role: "assistant", content: "", before: mode === "completion" ? asked : "", tokens: [] });
    turn.place.classList.add("writing");
    return turn;
  }

  /** Nothing was answered: take the question back, as if it had not been asked. */
  takeBack() {
    const turns = this.state.turns;
    while (turns.length && !(turns.at(-1).role === "assistant" && turns.at(-1).content)) turns.pop().block.remove();
  }

  clear() {
    this.running?.abort();
    this.state.turns.length = 0;
    this.state.told = null;
    show(this.answer);
    show(this.trouble);
    this.status.textContent = "";
    this.panel.hidden = true;
  }

  stop() {
    this.running?.abort();
  }

  add(turn) {
    this.state.turns.push(turn);
    turn.count = 0;
    return this.draw(turn);
  }

  draw(turn) {
    turn.place = h("span", {});
    const who =
      turn.before === undefined || turn.before === ""
        ? h("span", { class: "who" }, turn.role === "user" ? this.t("you") : this.state.model)
        : null;
    turn.block = h(
      "div",
      { class: `turn ${turn.role}` },
      turn.before ? h("span", { class: "asked" }, turn.before) : who,
      turn.place,
    );
    this.answer.append(turn.block);
    if (turn.tokens?.length) for (const token of turn.tokens) this.addToken(turn, token);
    else turn.place.append(turn.content);
    return turn;
  }

  append(turn, text, tokens) {
    const atEnd = this.answer.scrollHeight - this.answer.scrollTop - this.answer.clientHeight < 60;
    turn.content += text;
    if (tokens.length)
      for (const token of tokens) {
        turn.tokens.push(token);
        this.addToken(turn, token);
      }
    else turn.place.append(text);
    if (atEnd) this.answer.scrollTop = this.answer.scrollHeight;
  }

  addToken(turn, token) {
    if (!turn.place.add) {
      const list = tokenList(this.panel, this.t);
      list.className = `${turn.place.className} tokens`;
      turn.place.replaceWith(list);
      turn.place = list;
      this.panel.hidden = false;
    }
    turn.place.add(token);
  }

  tell(key, values) {
    this.state.told = [key, values];
    this.status.textContent = this.t(key, values);
  }

  fail(failure) {
    this.status.textContent = "";
    this.state.told = null;
    show(this.trouble, failureBox(failure, this.t));
  }

  /** Say so when nothing comes for a while, once aloud, then by counting. */
  watchSilence() {
    let last = performance.now(),
      said = false;
    const timer = setInterval(() => {
      const silent = performance.now() - last;
      if (silent < SLOW_MS) return;
      this.tell("slow", { seconds: Math.round(silent / 1000) });
      if (!said) this.announce(this.status.textContent);
      said = true;
    }, 1000);
    return {
      reset: () => {
        last = performance.now();
        said = false;
      },
      end: () => clearInterval(timer),
    };
  }
}

function rate(tokens, first) {
  const seconds = Math.max(0.001, (performance.now() - first) / 1000);
  return tokens > 1 ? Math.round((tokens - 1) / seconds) : "–";
}
