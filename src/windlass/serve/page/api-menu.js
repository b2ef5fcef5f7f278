// The operations of the API, grouped by what they are for, and searchable.

import { h, show as put } from "./dom.js";

const GROUPS = [
  ["text", (path) => /^\/v1\/(completions|chat|embeddings)/.test(path)],
  ["tokens", (path) => /^\/v1\/(tokenize|detokenize|dry-run|complete-call)/.test(path)],
  ["models", (path) => path.startsWith("/v1/")],
  ["runs", (path) => path.startsWith("/admin/control")],
  ["admin", (path) => path.startsWith("/admin/")],
  ["watch", (path) => /^\/(healthz|readyz|metrics)/.test(path)],
  ["people", () => true],
];
let typed = "";

/** Every operation of the document, with the group that it belongs to. */
export function operations(document) {
  return Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({
      ...operation,
      path,
      method: method.toUpperCase(),
      address: `${method}${path}`,
      scope: operation["x-scope"],
      group: GROUPS.find(([, holds]) => holds(path))[0],
    })),
  );
}

/** The list next to the text; `chosen` is marked. */
export function menu(all, chosen, t) {
  const list = h("div", { class: "stack" });
  const input = h("input", {
    type: "search",
    value: typed,
    "aria-label": t("search"),
    placeholder: t("search"),
    on: { input: draw },
  });
  function draw() {
    typed = input.value;
    const wanted = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const found = all.filter((each) =>
      wanted.every((word) => `${each.method} ${each.path} ${each.description}`.toLowerCase().includes(word)),
    );
    put(
      list,
      found.length
        ? GROUPS.map(([name]) =>
            group(
              name,
              found.filter((each) => each.group === name),
              chosen,
              t,
            ),
          )
        : h("p", { class: "hint" }, t("nothing")),
    );
  }
  draw();
  const heading = h("h1", {}, t("title"));
  return h(
    "nav",
    { class: "menu stack", "aria-label": t("operations") },
    heading,
    input,
    h("details", { open: matchMedia("(min-width: 60rem)").matches }, h("summary", {}, t("count", { count: all.length })), list),
  );
}

function group(name, found, chosen, t) {
  if (!found.length) return null;
  return h(
    "section",
    {},
    h("h2", { class: "hint" }, t(`group_${name}`)),
    h(
      "ul",
      {},
      found.map((each) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: `#/api/${each.address.split("/").map(encodeURIComponent).join("/")}`,
              "aria-current": each === chosen ? "true" : null,
            },
            h("span", { class: `method ${each.method.toLowerCase()}` }, each.method),
            " ",
            h("span", {}, each.path),
          ),
        ),
      ),
    ),
  );
}
