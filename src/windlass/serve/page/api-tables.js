// Tables of the API reference: parameters, fields with type, range and default, and errors.

import { h } from "./dom.js";
import { codes, facts, fields, range } from "./schema.js";

export function parameterTable(operation, document, t) {
  const given = operation.parameters ?? [];
  if (!given.length) return null;
  return h(
    "section",
    { class: "stack tight" },
    h("h3", {}, t("parameters")),
    table(
      given.map((each) => ({
        ...facts(document, each.name, each.schema, each.required),
        about: each.description ?? "",
        where: t(`in_${each.in}`),
      })),
      t,
    ),
  );
}

export function fieldTable(document, schema, t) {
  const all = fields(document, schema),
    refused = all.filter((each) => each.refused),
    known = all.filter((each) => !each.refused);
  return h(
    "div",
    { class: "stack tight" },
    table(known, t, document),
    refused.length
      ? h(
          "details",
          {},
          h("summary", { class: "hint" }, t("unsupported", { count: refused.length })),
          h(
            "p",
            {},
            refused.flatMap((each) => [h("code", {}, each.name), " "]),
          ),
        )
      : null,
  );
}

function table(found, t, document) {
  return h(
    "div",
    { class: "scrolls", tabindex: "0", role: "region", "aria-label": t("whole") },
    h(
      "table",
      { class: "list fields" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["name", "type", "range", "byDefault", "about"].map((word) => h("th", { scope: "col" }, t(word))),
        ),
      ),
      h(
        "tbody",
        {},
        found.map((each) => row(each, t, document)),
      ),
    ),
  );
}

function row(each, t, document) {
  const values = each.values.length
    ? t("one_of", { values: each.values.map((value) => JSON.stringify(value)).join(", ") })
    : "";
  const inner = document
    ? each.arms
        .map((arm) => (arm.type === "array" ? objects(document, arm.items) : arm))
        .flat()
        .filter((arm) => arm?.properties)
    : [];
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h("code", {}, each.name),
      each.required ? h("span", { class: "hint required" }, t("required")) : null,
    ),
    h("td", {}, [...new Set(each.kinds)].join(" | ") || "null"),
    h("td", {}, [range(each, t), values].filter(Boolean).join("; ")),
    h("td", {}, each.byDefault === null ? "" : JSON.stringify(each.byDefault)),
    h(
      "td",
      {},
      each.where ? `${each.where}. ` : "",
      each.about,
      inner.map((arm) =>
        h(
          "details",
          {},
          h("summary", { class: "hint" }, t("inside", { name: each.name })),
          h(
            "dl",
            { class: "inner" },
            fields(document, arm)
              .filter((one) => !one.refused)
              .map((one) => [
                h(
                  "dt",
                  {},
                  h("code", {}, one.name),
                  " ",
                  h(
                    "span",
                    { class: "hint" },
                    [[...new Set(one.kinds)].join(" | "), range(one, t), one.required ? t("required") : ""]
                      .filter(Boolean)
                      .join(" · "),
                  ),
                ),
                h("dd", {}, one.about || one.values.join(", ")),
              ]),
          ),
        ),
      ),
    ),
  );
}

const objects = (document, schema) => {
  const found = schema?.$ref ? document.components.schemas[schema.$ref.split("/").at(-1)] : schema;
  return found?.properties ? [found] : [];
};

export function errorTable(operation, t) {
  return h(
    "section",
    { class: "stack tight" },
    h("h3", {}, t("errorsOf")),
    h(
      "table",
      { class: "list" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["status", "name", "meaning"].map((word) => h("th", { scope: "col" }, t(word))),
        ),
      ),
      h(
        "tbody",
        {},
        codes(operation).map(({ code, status, meaning }) =>
          h(
            "tr",
            {},
            h("td", {}, h("span", { class: "badge" }, status)),
            h("td", {}, h("a", { href: `#/errors/${code}` }, h("code", {}, code))),
            h("td", {}, meaning),
          ),
        ),
      ),
    ),
  );
}
