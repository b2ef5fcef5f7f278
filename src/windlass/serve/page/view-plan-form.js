// The planner's form: fields with sliders next to them, and the request body that they make.

import { field, h, select } from "./dom.js";
import { readCount, readTime, writeCount, writeTime } from "./view-plan-numbers.js";

const STEPS = 1000;
const VOCABULARY = 128256;
const OWN_SIZES = ["layers", "width", "heads", "ffn_width"];

/** What the form begins with: a model of 7B on 64 devices, balanced. */
export const first = () => ({
  published: "", parameters: 7e9, sizes: null, tokens: 1.4e11, context: 4096, batch: null, device: "H100-SXM5", count: 64,
  price: null, deadline: null, budget: null, objective: "", precision: "", more: 0,
});

/** The body of POST v1/plan (docs/formats/control.md). */
export function question(asked) {
  const model = { context: asked.context };
  if (asked.sizes) Object.assign(model, asked.sizes);
  else if (!asked.published) model.parameters = Math.round(asked.parameters);
  const train = { tokens: Math.round(asked.tokens), ...(asked.batch ? { batch_sequences: asked.batch } : {}) };
  const each = [8, 4, 2, 1].find((size) => asked.count % size === 0);
  const machines = { device: asked.device, count: asked.count / each, devices: each };
  if (asked.price !== null) machines.price_h = asked.price;
  return {
    job: { name: "plan", model, train, corpus: { tokenizer: { vocabulary: VOCABULARY } } },
    sizes: asked.published || null, fleet: { machines: [machines] }, objective: asked.objective || null,
    deadline: asked.deadline, budget: asked.budget, precision: asked.precision || null, more: asked.more,
  };
}

/** What the form asks once a fix of the planner is applied; null where the form has no field for it. */
export function fixed(asked, changes) {
  const next = { ...asked };
  for (const [key, value] of Object.entries(changes)) {
    if (key === "devices") next.count = value;
    else if (key === "device") Object.assign(next, { device: value, price: null });
    else if (key === "price_h") next.price = value;
    else if (key === "batch_sequences") next.batch = value;
    else if (key === "deadline_s") next.deadline = Math.ceil(value / 3600) * 3600;
    else if (["precision", "context", "tokens"].includes(key)) next[key] = value;
    else if (OWN_SIZES.includes(key) && !Array.isArray(value)) next.sizes = { ...next.sizes, [key]: value };
    else return null;
  }
  if (next.sizes !== asked.sizes) next.published = "";
  return next;
}

/**
 * The form. `changed` hears what is asked whenever it is something else, `wrong` text that is no number. Its `put` asks for
 * something else, its `learn` only shows it.
 */
export function form(asked, choices, { t, format, changed, wrong }) {
  const now = { ...asked }, fits = [];        // each of `fits` brings a control to what is asked now
  const learn = (values) => { Object.assign(now, values); for (const fit of fits) fit(); };
  const put = (values) => { learn(values); changed({ ...now }); };
  const make = { t, now, fits, put, wrong };
  const known = () => choices.sizes.find((each) => each.name === now.published);
  const price = () => choices.devices.find((each) => each.name === now.device)?.dollars_h;
  const text = (value) => String(value ?? "");

  const size = dial(make, "parameters", { low: 1e7, high: 2e12, snap: two, about: " ", also: { sizes: null } });
  fits.push(() => {
    const own = size.querySelector("input");
    for (const input of size.querySelectorAll("input")) input.disabled = Boolean(known());
    if (known()) own.value = writeCount(known().parameters);
    size.querySelector(".hint").textContent = now.sizes ? t("ownLayers", now.sizes) : "";
  });
  const balance = h("button", { type: "button", class: "quiet small", on: {
    click: () => put({ tokens: two(20 * (known()?.parameters ?? now.parameters)) }) } }, t("balance"));
  const sizes = choices.sizes.map((each) => [each.name, `${each.name} (${format.count(each.parameters)})`]);
  const devices = choices.devices.filter((each) => each.accelerator)
    .map((each) => [each.name, `${each.name} · ${format.bytes(each.memory_bytes)}`]);
  const objectives = choices.objectives.map((each) => [each, t(`objective_${each}`)]);

  const submit = (event) => event.preventDefault();
  const element = h("form", { class: "card stack", "aria-label": t("asked"), on: { submit } },
    choice(make, "published", [["", t("ownSize")], ...sizes], { sizes: null }, t("model")), size,
    dial(make, "tokens", { low: 1e8, high: 2e13, snap: two, about: t("tokensHint") }), balance,
    dial(make, "context", { low: 512, high: 131072, snap: powers, write: text }),
    choice(make, "device", devices, { price: null }),
    dial(make, "count", { low: 1, high: 4096, snap: machinery, write: text,
      read: (given) => Math.round(readCount(given) ?? NaN) }),
    dial(make, "deadline", { low: 3600, high: 31536000, snap: times, read: readTime, write: writeTime, open: true,
      about: t("deadlineHint"), said: format.seconds }),
    dial(make, "budget", { low: 100, high: 1e9, snap: two, open: true, about: t("budgetHint"), said: format.dollars }),
    choice(make, "objective", [["", t("objective_auto")], ...objectives]),
    number(make, "more", { empty: 0, about: () => t("moreHint") }),
    h("details", {}, h("summary", {}, t("details")), h("div", { class: "stack" },
      choice(make, "precision", [["", t("precision_auto")], ...choices.precisions]),
      number(make, "price", { step: "any",
        about: () => t("priceHint", { price: price() ? format.dollars(price()) : t("unknown") }) }),
      number(make, "batch", { least: 1, about: () => t("batchHint") }))));
  learn({});
  return { element, put, learn };
}

/** A text field with a slider below it; at the far end of a slider that may be `open` there is no limit. */
function dial({ t, now, fits, put, wrong }, key, how) {
  const { low, high, snap, read = readCount, write = writeCount, said = write, open = false, also = {}, about } = how;
  const text = h("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: open ? t("noLimit") : "" });
  const slider = h("input", { type: "range", min: 0, max: STEPS, "aria-label": t("slider", { label: t(key) }) });
  const whole = field(t(key), text, about);
  whole.insertBefore(slider, text.nextSibling);
  const place = (value) => Math.round((Math.log(value / low) / Math.log(high / low)) * STEPS);
  fits.push(() => {
    const value = now[key];
    if (document.activeElement !== text) text.value = write(value);
    if (document.activeElement !== slider) slider.value = value === null ? STEPS : Math.max(0, Math.min(STEPS, place(value)));
    slider.setAttribute("aria-valuetext", value === null ? t("noLimit") : said(value));
  });
  text.addEventListener("change", () => {
    const value = read(text.value), bad = value === null ? !open : !(value > 0);
    text.setAttribute("aria-invalid", bad);
    if (bad) wrong(text.value);
    else put({ [key]: value, ...also });
  });
  slider.addEventListener("input", () => {
    const position = Number(slider.value), value = snap(low * (high / low) ** (position / STEPS));
    text.removeAttribute("aria-invalid");
    put({ [key]: open && position === STEPS ? null : value, ...also });
  });
  return whole;
}

function choice({ t, now, fits, put }, key, options, also = {}, label = t(key)) {
  const made = select({}, options);
  fits.push(() => { made.value = now[key]; });
  made.addEventListener("change", () => put({ [key]: made.value, ...also }));
  return field(label, made);
}

function number({ t, now, fits, put, wrong }, key, { least = 0, step = 1, empty = null, about }) {
  const made = h("input", { type: "number", min: least, step }), whole = field(t(key), made, about());
  fits.push(() => {
    if (document.activeElement !== made) made.value = now[key] ?? "";
    whole.querySelector(".hint").textContent = about();
  });
  made.addEventListener("change", () => {
    if (made.checkValidity()) put({ [key]: made.value === "" ? empty : made.valueAsNumber });
    else wrong(made.value);
  });
  return whole;
}

/* Where sliders rest: on numbers that people would say. */
const two = (value) => Number(value.toPrecision(2));
const powers = (value) => 2 ** Math.round(Math.log2(value));
const near = (value, unit) => Math.round(value / unit) * unit;
const machinery = (value) => (value < 8 ? powers(value) : near(value, value < 128 ? 8 : 64));
const times = (value) => near(value, value < 86400 ? 3600 : 86400);
