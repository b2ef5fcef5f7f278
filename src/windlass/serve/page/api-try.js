// "Try it": sends what the editor holds to the real route, and shows what came back as it came.

import { copyButton, field, h, show } from "./dom.js";
import { editor } from "./editor.js";
import { facts } from "./schema.js";

const SHOWN = /^(content-type|retry-after|x-request-id|x-ratelimit|x-.*|www-authenticate|allow)/;

/** Build the form of one operation: { element, request, end }. `starts` is the first text of the body, or null. */
export function tryOut(operation, document, starts, context) {
  const { t } = context;
  const given = new Map((operation.parameters ?? []).map((each) => [each, input(each, document)]));
  const out = h("div", { class: "stack tight", "aria-live": "polite" });
  const button = h("button", { type: "submit", class: "primary" }, t("send"));
  const stop = h("button", { type: "button", hidden: true, on: { click: () => running?.abort() } }, t("cancel"));
  const typing =
    starts === null
      ? null
      : editor(starts, {
          ...context,
          about: known(document, operation),
          changed: () => {
            sure = false;
            button.textContent = t("send");
            tell?.();
          },
          send: () => send(),
        });
  let running = null,
    sure = false,
    tell = null;

  function path() {
    let place = operation.path;
    const query = new URLSearchParams();
    for (const [each, control] of given) {
      if (each.in === "path")
        place = place.replace(
          `{${each.name}}`,
          encodeURIComponent(control.value).replaceAll("%40", "@").replaceAll("%3A", ":"),
        );
      if (each.in === "query" && control.value !== "") query.append(each.name, control.value);
    }
    return query.size ? `${place}?${query}` : place;
  }
  function headers() {
    return Object.fromEntries(
      [...given]
        .filter(([each, control]) => each.in === "header" && control.value !== "")
        .map(([each, control]) => [each.name, control.value]),
    );
  }
  async function send() {
    if (running) return;
    if (changes(operation) && !sure) {
      sure = true;
      button.textContent = t("sendSure");
      return;
    }
    sure = false;
    button.textContent = t("send");
    button.disabled = true;
    stop.hidden = false;
    running = new AbortController();
    show(out, h("p", { class: "hint" }, t("sending")));
    try {
      const began = performance.now();
      const response = await context.api.raw(path(), {
        method: operation.method,
        text: typing?.value,
        signal: running.signal,
        headers: headers(),
      });
      await receive(out, response, performance.now() - began, typing, context);
    } catch (failure) {
      if (failure.name !== "AbortError")
        show(out, h("p", { class: "failure", role: "alert" }, t.own(`failure_${failure.code}`) ?? failure.message));
    } finally {
      running = null;
      button.disabled = false;
      stop.hidden = true;
    }
  }
  function inputs(required) {
    const found = [...given].filter(([each]) => Boolean(each.required) === required);
    const grid = h(
      "div",
      { class: "grid" },
      found.map(([each, control]) => field(each.name, control, t(`in_${each.in}`))),
    );
    if (!found.length || required) return found.length ? grid : null;
    return h(
      "details",
      { class: "stack tight" },
      h("summary", { class: "hint" }, t("optional", { names: found.map(([each]) => each.name).join(", ") })),
      grid,
    );
  }
  const element = h(
    "form",
    {
      class: "stack",
      novalidate: true,
      on: {
        submit: (event) => {
          event.preventDefault();
          send();
        },
      },
    },
    inputs(true),
    typing?.element,
    inputs(false),
    h("div", { class: "row" }, button, stop),
    out,
  );
  for (const control of given.values()) control.addEventListener("input", () => tell?.());
  return {
    element,
    request: () => ({ method: operation.method, path: path(), body: typing ? parsed(typing.value) : undefined }),
    onChange: (listener) => {
      tell = listener;
    },
    end: () => {
      running?.abort();
      typing?.end();
    },
  };
}

/** Show status, the headers that mean something, and the body, piece by piece where it streams. */
async function receive(out, response, ms, typing, { t, announce }) {
  const text = h("code", {});
  const heads = [...response.headers].filter(([name]) => SHOWN.test(name));
  show(
    out,
    h("h3", {}, t("response")),
    h(
      "div",
      { class: "row" },
      h(
        "span",
        { class: `badge ${response.ok ? "good" : "wrong"}`, id: "try-status" },
        `${response.status} ${response.statusText}`.trim(),
      ),
      h("span", { class: "hint" }, t("took", { ms: Math.round(ms) })),
    ),
    h(
      "dl",
      { class: "facts small" },
      heads.map(([name, value]) => [h("dt", {}, name), h("dd", {}, h("code", {}, value))]),
    ),
    h(
      "div",
      { class: "code" },
      h("pre", { tabindex: "0", "aria-label": t("response"), "aria-live": "off" }, text),
      copyButton(() => text.textContent, t, announce),
    ),
  );
  announce(t("answered", { status: response.status }));
  if ((response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) text.append(part.value);
    return;
  }
  const whole = await response.text();
  const told = parsed(whole);
  text.textContent = told === undefined ? whole || t("empty") : JSON.stringify(told, null, 2);
  const error = told?.error;
  if (!error?.code) return;
  out.append(
    h(
      "div",
      { class: "row" },
      h("a", { href: `#/errors/${error.code}` }, t("readMore", { code: error.code })),
      error.corrected && typing
        ? h(
            "button",
            { type: "button", on: { click: () => typing.set(JSON.stringify(error.corrected, null, 2)) } },
            t("useCorrected"),
          )
        : null,
    ),
  );
}

function input(parameter, document) {
  const known = facts(document, parameter.name, parameter.schema);
  return h("input", { type: "text", placeholder: known.byDefault ?? "", required: parameter.required, spellcheck: "false" });
}

/** Whether sending changes what others see: everything that is no GET and no question to a model. */
const changes = ({ method, path }) => method !== "GET" && !path.startsWith("/v1/");

/** What a completion request may have in addition to the text, if the server's document lists the route. */
function known(document, operation) {
  const schema = document.paths["/v1/complete-call"]?.post?.requestBody?.content?.["application/json"]?.schema;
  const names = document.components.schemas[schema?.$ref?.split("/").at(-1)]?.properties ?? {};
  return Object.fromEntries(["method", "path"].filter((name) => name in names).map((name) => [name, operation[name]]));
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
