// The page: a prompt in, a streamed answer out. words.js has the words, stream.js the wire.

import { headers, pass, repeat, shut, watch } from "./key.js";
import { Refusal, events } from "./stream.js";
import { choose, say } from "./words.js";

const find = (id) => document.getElementById(id);
const ask = find("ask"), prompt = find("prompt"), answer = find("answer"), status = find("status");
const error = find("error"), run = find("run"), stop = find("stop"), models = find("models");

const turns = [];        // the conversation so far, in chat mode
let offered = [];        // what /v1/models says, without models that write nothing
let model = null;        // the one of them that is asked
let running = null;      // the AbortController of the answer in the making

const mode = () => ask.elements.mode.value;

function request() {
  const body = {
    model: model?.id ?? "",
    temperature: find("temperature").valueAsNumber,
    max_tokens: find("max-tokens").valueAsNumber,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (find("seed").value !== "") body.seed = find("seed").valueAsNumber;
  if (mode() === "completion") return { path: "/v1/completions", body: { ...body, prompt: prompt.value } };
  const messages = [...turns, { role: "user", content: prompt.value }];
  return { path: "/v1/chat/completions", body: { ...body, messages } };
}

async function start() {
  if (running) return;
  tell("");
  if (prompt.value === "") return tell(say("emptyPrompt"), prompt);
  if (!ask.checkValidity()) return tell(say("badSettings"), ask.querySelector("input:invalid"));
  if (!model) await load();
  const { path, body } = request();
  running = new AbortController();
  busy(true);
  const place = open(prompt.value);
  try {
    await write(path, body, place, running.signal);
  } catch (failure) {
    if (failure.name === "AbortError") return;
    if (failure.code === "unauthorized") return shut(failure.code);
    tell(explain(failure));
    status.textContent = "";
  } finally {
    close(place);
    running = null;
    busy(false);
  }
}

async function write(path, body, place, signal) {
  const began = performance.now();
  let first = 0, tokens = 0, reason = null;
  status.textContent = say("waiting");
  signal.addEventListener("abort", () => { status.textContent = say("stopped", tokens); });
  for await (const event of events(path, body, signal)) {
    const choice = event.choices[0];
    const text = choice?.text ?? choice?.delta?.content ?? "";
    if (text) {
      first ||= performance.now();
      tokens += 1;
      append(place, text);
      status.textContent = say("writing", tokens, rate(tokens, first));
    }
    reason = choice?.finish_reason ?? reason;
    if (event.usage) tokens = event.usage.completion_tokens;
  }
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  status.textContent = say(reason === "length" ? "cut" : "done", tokens, seconds, rate(tokens, first));
}

function rate(tokens, first) {
  const seconds = Math.max(0.001, (performance.now() - first) / 1000);
  return tokens > 1 ? Math.round((tokens - 1) / seconds) : "–";
}

/** Make room for an answer; in a completion the prompt stands before it, in a chat as a turn. */
function open(asked) {
  const place = document.createElement("span");
  if (mode() === "completion") {
    const before = document.createElement("span");
    before.className = "asked";
    before.textContent = asked;
    answer.replaceChildren(before, place);
  } else {
    turns.push({ role: "user", content: asked });
    turn("user").append(asked);
    turn("assistant").append(place);
    prompt.value = "";
  }
  place.className = "writing";
  answer.setAttribute("aria-busy", "true");
  return place;
}

function close(place) {
  place.className = "";
  answer.setAttribute("aria-busy", "false");
  if (mode() === "completion") return;
  if (place.textContent) {
    turns.push({ role: "assistant", content: place.textContent });
  } else {
    // Nothing was answered: the question goes back into the box, as if it had not been asked.
    prompt.value ||= turns.pop().content;
    answer.lastChild.remove();
    answer.lastChild.remove();
  }
}

function turn(role) {
  const block = document.createElement("div");
  const who = document.createElement("span");
  block.className = "turn";
  who.className = "who";
  who.dataset.word = role;
  who.textContent = say(role);
  block.append(who);
  answer.append(block);
  return block;
}

function append(place, text) {
  const atEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
  place.append(text);
  if (atEnd) answer.scrollTop = answer.scrollHeight;
}

function clear() {
  running?.abort();
  turns.length = 0;
  answer.replaceChildren();
  status.textContent = "";
  tell("");
  prompt.focus();
}

function busy(is) {
  run.disabled = is;
  stop.disabled = !is;
  for (const input of ask.elements.mode) input.disabled = is;
}

function tell(message, focus) {
  error.textContent = message;
  error.hidden = message === "";
  focus?.focus();
}

/** Say a failure in plain words: ours where the page has them, the server's otherwise. */
function explain(failure) {
  if (failure instanceof Refusal) return say(failure.code) ?? failure.message;
  return failure instanceof TypeError ? say("unreachable") : String(failure.message);
}

async function copyCurl() {
  const { path, body } = request();
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = headers().authorization ? ` -H "Authorization: Bearer $WINDLASS_KEY"` : "";
  const command = `curl -N ${location.origin}${path}${key} -H 'Content-Type: application/json' -d '${quoted}'`;
  try {
    await navigator.clipboard.writeText(command);
    status.textContent = say("copied");
  } catch {
    tell(say("copyFailed"));
  }
}

async function load() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    const listed = await response.json();
    if ([401, 403].includes(response.status)) return shut(headers().authorization && listed.error.code);
    pass();
    offered = listed.data.filter((each) => each.family !== "bert");
    models.replaceChildren(...offered.map((each) => new Option(each.id)));
    model = offered[0] ?? listed.data[0];
  } catch {
    offered = [];
    model = null;
  }
  find("choice").hidden = offered.length < 2;
  limit();
  describe();
}

function change() {
  model = offered[models.selectedIndex];
  clear();
  limit();
  describe();
}

function describe() {
  if (ask.hidden) return;
  const parts = [model?.id];
  if (model?.parameters) parts.push(say("parameters", short(model.parameters)));
  if (model?.context_length) parts.push(say("context", model.context_length));
  if (!model?.context_length) parts.push(say("noModel"));
  find("model").textContent = parts.filter(Boolean).join(" · ");
}

/** Keep the most tokens within what the model can write; half of a short context is left to the prompt. */
function limit() {
  const most = find("max-tokens");
  if (!model?.context_length) return;
  most.max = model.context_length - 1;
  most.value = Math.min(most.valueAsNumber || 1, Math.max(1, model.context_length >> 1));
}

function short(count) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(count);
}

function translate(tag) {
  const language = choose(tag);
  document.documentElement.lang = language;
  for (const each of document.querySelectorAll("[data-word]")) each.textContent = say(each.dataset.word);
  for (const each of document.querySelectorAll("[data-hint]")) each.placeholder = say(each.dataset.hint);
  const other = find("language");
  other.textContent = language === "en" ? "中文" : "English";
  other.lang = language === "en" ? "zh" : "en";
  other.onclick = () => translate(other.lang);
  status.textContent = "";
  invite();
  describe();
  repeat();
}

function invite() {
  answer.dataset.empty = say(mode() === "chat" ? "emptyChat" : "emptyCompletion");
}

ask.addEventListener("submit", (event) => { event.preventDefault(); start(); });
ask.noValidate = true;
models.addEventListener("change", change);
stop.addEventListener("click", () => running?.abort());
find("clear").addEventListener("click", clear);
find("curl").addEventListener("click", copyCurl);
for (const input of ask.elements.mode) input.addEventListener("change", () => { clear(); invite(); input.focus(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); start(); }
  if (event.key === "Escape") running?.abort();
});

watch(load, () => { clear(); model = null; describe(); });
translate(navigator.language);
load();
