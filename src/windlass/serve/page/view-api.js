// The API reference, made from the server's own OpenAPI document: every operation, field, range and error.

import { words } from "./api-words.js";
import { tryOut } from "./api-try.js";
import { codeTabs } from "./code.js";
import { h, show as put } from "./dom.js";
import { bodySchema, codes, example, facts, fields, loadDocument, range, replySchema } from "./schema.js";

export { words };
export const title = "title";

const GROUPS = [
  ["text", (path) => /^\/v1\/(completions|chat|embeddings)/.test(path)],
  ["tokens", (path) => /^\/v1\/(tokenize|detokenize|dry-run|complete-call)/.test(path)],
  ["models", (path) => path.startsWith("/v1/")],
  ["runs", (path) => path.startsWith("/admin/control")],
  ["admin", (path) => path.startsWith("/admin/")],
  ["watch", (path) => /^\/(healthz|readyz|metrics)/.test(path)],
  ["people", () => true],
];
const FIRST_TEXTS = { prompt: "Once upon a time", input: "Once upon a time", text: "Once upon a time", role: "user", content: "Hello!", route: "/v1/completions" };
let typed = "";

export async function show(root, context) {
  const { api, rest, t, scopes } = context;
  const document = await loadDocument(api);
  const all = operations(document).filter((each) => !each.scope || scopes.includes(each.scope));
  const chosen = all.find((each) => each.address.replace(/\/$/, "") === rest.join("/")) ?? all[0];
  const models = await api.call("/v1/models").then(({ data }) => data.map((each) => each.id), () => []);
  const place = h("article", { class: "stack operation", "aria-labelledby": "operation" });
  put(root, h("div", { class: "reference" }, menu(all, chosen, t), place));
  return one(place, chosen, document, models[0] ?? "MODEL", context);
}

function operations(document) {
  return Object.entries(document.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => ({
    ...told, path, method: method.toUpperCase(), address: `${method}${path}`, scope: told["x-scope"], group: GROUPS.find(([, holds]) => holds(path))[0],
  })));
}

function menu(all, chosen, t) {
  const list = h("div", { class: "stack" });
  const input = h("input", { type: "search", value: typed, "aria-label": t("search"), placeholder: t("search"), on: { input: draw } });
  function draw() {
    typed = input.value;
    const wanted = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((each) => wanted.every((word) => `${each.method} ${each.path} ${each.description}`.toLowerCase().includes(word)));
    put(list, found.length ? GROUPS.map(([name]) => group(name, found.filter((each) => each.group === name), chosen, t)) : h("p", { class: "hint" }, t("nothing")));
  }
  draw();
  const heading = h("h1", {}, t("title"));
  return h("nav", { class: "menu stack", "aria-label": t("operations") }, heading, input,
    h("details", { open: matchMedia("(min-width: 60rem)").matches }, h("summary", {}, t("count", { count: all.length })), list));
}

function group(name, found, chosen, t) {
  if (!found.length) return null;
  return h("section", {}, h("h2", { class: "hint" }, t(`group_${name}`)), h("ul", {}, found.map((each) =>
    h("li", {}, h("a", { href: `#/api/${each.address.split("/").map(encodeURIComponent).join("/")}`, "aria-current": each === chosen ? "true" : null },
      h("span", { class: `method ${each.method.toLowerCase()}` }, each.method), " ", h("span", {}, each.path))))));
}

function one(place, operation, document, model, context) {
  const { t } = context;
  const schema = bodySchema(document, operation), reply = replySchema(document, operation);
  const starts = schema ? sessionStorage.getItem("windlass-try") ?? JSON.stringify(started(document, schema, model), null, 2) : null;
  sessionStorage.removeItem("windlass-try");
  const trial = tryOut(operation, document, starts, context);
  let last = trial.request();
  const code = codeTabs(() => { const now = trial.request(); if (!schema || now.body !== undefined) last = now; return last; }, context);
  trial.onChange(() => code.refresh());
  put(place,
    h("header", { class: "stack tight" }, h("h2", { id: "operation", class: "path" }, h("span", { class: `method ${operation.method.toLowerCase()}` }, operation.method), " ", operation.path),
      h("p", {}, operation.description), h("p", {}, h("span", { class: "badge" }, operation.scope ? t("scope", { scope: operation.scope }) : t("open")))),
    h("section", { class: "card stack", "aria-label": t("tryIt") }, h("h3", {}, t("tryIt")), trial.element),
    h("section", { class: "stack tight" }, h("h3", {}, t("examples")), code),
    parameterTable(operation, document, t),
    schema ? h("section", { class: "stack tight" }, h("h3", {}, t("body")), fieldTable(document, schema, t)) : null,
    reply ? h("section", { class: "stack tight" }, h("h3", {}, t("answer")), h("p", { class: "hint" }, reply.description ?? ""), fieldTable(document, reply, t)) : null,
    errorTable(operation, t));
  return () => trial.end();
}

/** The first body of the editor: what is required, with a model that is there; and a few tokens, so that it ends soon. */
function started(document, schema, model) {
  const body = example(document, schema, { ...FIRST_TEXTS, model });
  if (schema.properties?.text && !("text" in body)) body.text = FIRST_TEXTS.text;
  if (schema.properties?.route) body.body = { model, prompt: FIRST_TEXTS.prompt };
  const few = ["max_completion_tokens", "max_tokens"].find((name) => name in (schema.properties ?? {}));
  return few ? { ...body, [few]: 16 } : body;
}

function parameterTable(operation, document, t) {
  const given = operation.parameters ?? [];
  if (!given.length) return null;
  return h("section", { class: "stack tight" }, h("h3", {}, t("parameters")), table(given.map((each) =>
    ({ ...facts(document, each.name, each.schema, each.required), about: each.description ?? "", where: t(`in_${each.in}`) })), t));
}

function fieldTable(document, schema, t) {
  const all = fields(document, schema), refused = all.filter((each) => each.refused), known = all.filter((each) => !each.refused);
  return h("div", { class: "stack tight" }, table(known, t, document),
    refused.length ? h("details", {}, h("summary", { class: "hint" }, t("unsupported", { count: refused.length })), h("p", {}, refused.flatMap((each) => [h("code", {}, each.name), " "]))) : null);
}

function table(found, t, document) {
  return h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": t("whole") }, h("table", { class: "list fields" },
    h("thead", {}, h("tr", {}, ["name", "type", "range", "byDefault", "about"].map((word) => h("th", { scope: "col" }, t(word))))),
    h("tbody", {}, found.map((each) => row(each, t, document)))));
}

function row(each, t, document) {
  const values = each.values.length ? t("one_of", { values: each.values.map((value) => JSON.stringify(value)).join(", ") }) : "";
  const inner = document ? each.arms.map((arm) => (arm.type === "array" ? objects(document, arm.items) : arm)).flat().filter((arm) => arm?.properties) : [];
  return h("tr", {}, h("th", { scope: "row" }, h("code", {}, each.name), each.required ? h("span", { class: "hint required" }, t("required")) : null),
    h("td", {}, [...new Set(each.kinds)].join(" | ") || "null"), h("td", {}, [range(each, t), values].filter(Boolean).join("; ")),
    h("td", {}, each.byDefault === null ? "" : JSON.stringify(each.byDefault)),
    h("td", {}, each.where ? `${each.where}. ` : "", each.about, inner.map((arm) =>
      h("details", {}, h("summary", { class: "hint" }, t("inside", { name: each.name })), h("dl", { class: "inner" }, fields(document, arm).filter((one) => !one.refused).map((one) =>
        [h("dt", {}, h("code", {}, one.name), " ", h("span", { class: "hint" }, [[...new Set(one.kinds)].join(" | "), range(one, t), one.required ? t("required") : ""].filter(Boolean).join(" · "))), h("dd", {}, one.about || one.values.join(", "))]))))));
}

const objects = (document, schema) => {
  const found = schema?.$ref ? document.components.schemas[schema.$ref.split("/").at(-1)] : schema;
  return found?.properties ? [found] : [];
};

function errorTable(operation, t) {
  return h("section", { class: "stack tight" }, h("h3", {}, t("errorsOf")), h("table", { class: "list" },
    h("thead", {}, h("tr", {}, ["status", "name", "meaning"].map((word) => h("th", { scope: "col" }, t(word))))),
    h("tbody", {}, codes(operation).map(({ code, status, meaning }) => h("tr", {}, h("td", {}, h("span", { class: "badge" }, status)),
      h("td", {}, h("a", { href: `#/errors/${code}` }, h("code", {}, code))), h("td", {}, meaning))))));
}
