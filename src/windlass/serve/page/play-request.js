// What the playground knows and what it would send.

import { chosen } from "./play-settings.js";
import { bodySchema, facts } from "./schema.js";

export const PATHS = { completion: "/v1/completions", chat: "/v1/chat/completions" };
export const EXAMPLES = {
  completion: ["def fibonacci(n):\n", "Once upon a time ", "import "],
  chat: {
    en: ["What can you do?", "Write a haiku about the sea.", "Explain recursion in one sentence."],
    zh: ["你会做什么？", "写一首关于大海的俳句。", "用一句话解释递归。"],
  },
};

// What was typed and answered stays when the view is left, or drawn anew in another language.
export const kept = { mode: "completion", prompt: "", system: "", logprobs: false, compare: false, values: {}, columns: [] };

/** The request of a column, as it would be sent now. */
export function request(play, n, text = play.prompt.value) {
  const path = PATHS[kept.mode],
    { turns, model } = kept.columns[n];
  const body = {
    model,
    ...asked(turns, text),
    ...chosen(play.parameters ?? [], kept.values),
    ...sureness(play, path),
    stream: true,
    stream_options: { include_usage: true },
  };
  return { method: "POST", path, body };
}

function asked(turns, text) {
  if (kept.mode === "completion") return { prompt: text };
  const before = turns.filter((turn) => turn.content).map(({ role, content }) => ({ role, content }));
  const system = kept.system ? [{ role: "system", content: kept.system }] : [];
  return { messages: [...system, ...before, { role: "user", content: text }] };
}

/** How to ask for log-probabilities, as far as the document allows. */
function sureness(play, path) {
  if (!kept.logprobs || !play.description) return {};
  const schema = bodySchema(play.description, play.description.paths[path].post);
  const name = schema.properties.top_logprobs ? "top_logprobs" : "logprobs";
  const most = Math.min(5, facts(play.description, name, schema.properties[name]).most ?? 5);
  return name === "logprobs" ? { logprobs: most } : { logprobs: true, top_logprobs: most };
}

/** The request as code shows it: an example where nothing was typed, and without what only this page needs. */
export function sample(play) {
  const text = play.prompt?.value || kept.asked || EXAMPLES.completion[0];
  const whole = request(play, 0, text);
  const { stream_options: _, ...body } = whole.body;
  return { ...whole, body };
}
