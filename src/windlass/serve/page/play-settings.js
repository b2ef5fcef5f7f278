// The settings of a request: one control for each parameter that the server's document has, with its range and default.

import { field, h, show } from "./dom.js";
import { bodySchema, fields, range } from "./schema.js";

const FIRST = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop"];
const ELSEWHERE = new Set([
  "model",
  "prompt",
  "messages",
  "stream",
  "stream_options",
  "user",
  "logprobs",
  "top_logprobs",
  "n",
  "best_of",
]);
const OWN = { max_tokens: 128, max_completion_tokens: 128, temperature: 0.8 };

/** The parameters of a route that a control can be made for. */
export function parameters(document, path) {
  const all = fields(document, bodySchema(document, document.paths[path].post));
  const names = new Set(all.map((each) => each.name));
  const older = (each) => each.name === "max_tokens" && names.has("max_completion_tokens");
  const known = all.filter((each) => !ELSEWHERE.has(each.name) && !each.refused && !older(each) && control(each));
  const rank = (each) => (FIRST.includes(each.name) ? FIRST.indexOf(each.name) : FIRST.length);
  return known.sort((one, other) => rank(one) - rank(other));
}

/** Keep a number of tokens within what the model can write. */
export function within(parameter, model) {
  if (!/^max_(completion_)?tokens$/.test(parameter.name) || !model?.context_length) return parameter;
  return { ...parameter, most: Math.min(parameter.most ?? Infinity, model.context_length - 1) };
}

/** The initial value of a parameter; half of a short context is left to the prompt. */
export function initial(parameter, model) {
  const own = OWN[parameter.name];
  if (own === undefined) return "";
  return /tokens$/.test(parameter.name) && model?.context_length ? Math.min(own, Math.max(1, model.context_length >> 1)) : own;
}

/** Draw the controls. `values` is read and written; `changed` is called after a change. */
export function settingsPanel(place, found, values, { t, changed }) {
  const made = found.map((each) => one(each, values, t, changed));
  const few = made.filter((_, n) => FIRST.includes(found[n].name)),
    rest = made.filter((_, n) => !FIRST.includes(found[n].name));
  show(
    place,
    few,
    rest.length ? h("details", { class: "stack" }, h("summary", {}, t("more")), h("div", { class: "stack" }, rest)) : null,
  );
}

/** The first parameter whose value the server would refuse, or undefined. */
export function wrong(found, values) {
  return found.find((each) => {
    if (control(each) !== "number" || (values[each.name] ?? "") === "") return false;
    const value = Number(values[each.name]);
    return (
      !Number.isFinite(value) ||
      (each.whole && !Number.isInteger(value)) ||
      value < (each.least ?? -Infinity) ||
      value > (each.most ?? Infinity) ||
      value <= (each.above ?? -Infinity) ||
      value >= (each.below ?? Infinity)
    );
  });
}

/** The settings as the body has them: only what was set. */
export function chosen(found, values) {
  const set = found.filter((each) => (values[each.name] ?? "") !== "" && values[each.name] !== false);
  return Object.fromEntries(
    set.map((each) => [
      each.name,
      control(each) === "number"
        ? Number(values[each.name])
        : each.name === "stop"
          ? values.stop.split("\n").filter(Boolean)
          : values[each.name],
    ]),
  );
}

function control(parameter) {
  if (parameter.values.length) return parameter.kinds.every((kind) => kind === "string") ? "choice" : null;
  if (parameter.kinds.includes("number") || parameter.kinds.includes("integer")) return "number";
  if (parameter.kinds.includes("boolean")) return "boolean";
  return parameter.kinds.includes("string") ? "text" : null;
}

function one(parameter, values, t, changed) {
  const name = t.own(`p_${parameter.name}`) ?? parameter.name;
  const about = [explained(parameter, t), bounds(parameter, t)];
  if (control(parameter) === "boolean") return tick(parameter, name, about, values, changed);
  if (control(parameter) === "text") return text(parameter, name, about, values, changed);
  return number(parameter, name, about, values, changed, t);
}

/** What the parameter does; its default is shown with its range. */
function explained(parameter, t) {
  return t.own(`about_${parameter.name}`) ?? parameter.about.replace(/[;,] default [-\d.]+?\.?$/, ".");
}

/** "0 – 2 · default 1", on a line of its own. */
function bounds(parameter, t) {
  const told = [range(parameter, t), parameter.byDefault === null ? "" : t("byDefault", { value: parameter.byDefault })].filter(
    Boolean,
  );
  return told.length ? h("span", { class: "bounds" }, told.join(" · ")) : null;
}

function number(parameter, name, about, values, changed, t) {
  const step = parameter.whole ? 1 : "any";
  const input = h("input", {
    type: "number",
    min: parameter.least,
    max: parameter.most,
    step,
    data: { parameter: parameter.name },
    value: values[parameter.name] ?? "",
    placeholder: String(parameter.byDefault ?? t("any")),
    on: { input: () => set(input.value) },
  });
  const slides = !parameter.whole && parameter.most !== undefined && (parameter.least ?? parameter.above) !== undefined;
  const least = parameter.least ?? parameter.above;
  const slider = slides
    ? h("input", {
        type: "range",
        min: least,
        max: parameter.most,
        step: (parameter.most - least) / 40,
        tabindex: "-1",
        "aria-hidden": "true",
        value: values[parameter.name] || parameter.byDefault || 0,
        on: { input: () => set(round(slider.value)) },
      })
    : null;
  function set(value) {
    values[parameter.name] = value;
    if (input.value !== String(value)) input.value = value;
    if (slider && value !== "") slider.value = value;
    changed();
  }
  const whole = field(name, input, about);
  whole.classList.add("amount");
  if (slider) input.after(slider);
  return whole;
}

function text(parameter, name, about, values, changed) {
  const input = h(parameter.name === "stop" ? "textarea" : "input", {
    rows: "1",
    spellcheck: "false",
    data: { parameter: parameter.name },
    value: values[parameter.name] ?? "",
    on: {
      input: () => {
        values[parameter.name] = input.value;
        changed();
      },
    },
  });
  return field(name, input, about);
}

function tick(parameter, name, about, values, changed) {
  const input = h("input", {
    type: "checkbox",
    checked: values[parameter.name] === true,
    id: `tick-${parameter.name}`,
    "aria-describedby": `tick-${parameter.name}-about`,
    on: {
      change: () => {
        values[parameter.name] = input.checked;
        changed();
      },
    },
  });
  return h(
    "div",
    { class: "field" },
    h("label", { class: "check" }, input, name),
    h("span", { class: "hint", id: `tick-${parameter.name}-about` }, about),
  );
}

const round = (text) => Math.round(Number(text) * 1000) / 1000;
