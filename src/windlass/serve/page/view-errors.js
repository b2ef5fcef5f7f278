// Errors explained: every code of the server, searchable, with its cause, a corrected request and what to do.

import { copyButton, h, prose, show as put } from "./dom.js";
import { words } from "./errors-words.js";

export { words };
export const title = "title";

const FAMILIES = [
  ["client", ({ status }) => status < 500 && ![401, 403, 429].includes(status)],
  ["access", ({ status }) => status === 401 || status === 403],
  ["wait", ({ status }) => status === 429],
  ["server", ({ status }) => status >= 500],
];
let typed = "";

export async function show(root, context) {
  const { api, language, rest, t } = context;
  const { data } = await api.call(`/errors?lang=${language}`, { accept: "application/json" });
  if (!rest.length) return list(root, data, context);
  const entry = data.find((each) => each.code === rest[0]);
  if (!entry) return void put(root, back(t), h("p", { class: "failure", role: "alert" }, t("unknown", { code: rest[0] })));
  document.title = `${entry.code} · Windlass`;
  put(root, one(entry, await liveModel(context), context));
}

function list(root, data, { t, announce }) {
  const places = h("div", { class: "stack" });
  const count = h("p", { class: "hint" });
  const input = h("input", {
    type: "search",
    value: typed,
    "aria-label": t("search"),
    placeholder: t("search"),
    on: {
      input: () => {
        draw();
        announce(count.textContent);
      },
    },
  });
  function draw() {
    typed = input.value;
    const wanted = typed.toLowerCase().split(/\s+/).filter(Boolean);
    const found = data.filter((each) =>
      wanted.every((word) =>
        `${each.code} ${each.status} ${each.type} ${each.meaning} ${each.remedy}`.toLowerCase().includes(word),
      ),
    );
    count.textContent = t("found", { count: found.length, all: data.length });
    put(
      places,
      found.length ? FAMILIES.map(([name, holds]) => family(t(name), found.filter(holds), t)) : h("p", {}, t("nothing")),
    );
  }
  draw();
  put(
    root,
    h(
      "div",
      { class: "stack errors" },
      h("h1", {}, t("title")),
      h("p", { class: "hint" }, t("intro")),
      h("div", { class: "row" }, h("div", { class: "search" }, input), count),
      places,
    ),
  );
}

function family(name, entries, t) {
  if (!entries.length) return null;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, name),
    h(
      "table",
      { class: "list" },
      h(
        "thead",
        { class: "unseen" },
        h(
          "tr",
          {},
          ["code", "status", "meaning"].map((word) => h("th", { scope: "col" }, t(word))),
        ),
      ),
      h(
        "tbody",
        {},
        entries.map((each) =>
          h(
            "tr",
            {},
            h("td", {}, h("a", { href: `#/errors/${each.code}` }, h("code", {}, each.code))),
            h("td", {}, h("span", { class: "badge" }, each.status)),
            h("td", {}, each.meaning),
          ),
        ),
      ),
    ),
  );
}

function one(entry, model, { t, announce, go, scopes }) {
  return h(
    "div",
    { class: "stack explained" },
    back(t),
    h(
      "div",
      { class: "row" },
      h("h1", {}, h("code", {}, entry.code)),
      h("span", { class: "badge" }, entry.status),
      h("span", { class: "badge" }, entry.type),
    ),
    h("section", { class: "stack tight" }, h("h2", {}, t("meaning")), h("p", {}, prose(entry.meaning))),
    h("section", { class: "stack tight" }, h("h2", {}, t("remedy")), h("p", {}, prose(entry.remedy))),
    entry.wrong
      ? h(
          "section",
          { class: "stack tight" },
          h("h2", {}, t("example")),
          h("p", { class: "hint" }, `POST ${entry.route}`),
          h(
            "div",
            { class: "grid pair" },
            body(t("refused"), "wrong", entry.wrong, entry.right, model),
            body(t("accepted"), "good", entry.right, entry.wrong, model, copyButton(named(entry.right, model), t, announce)),
          ),
          scopes.includes("use")
            ? h(
                "div",
                {},
                h(
                  "button",
                  {
                    type: "button",
                    on: {
                      click: () => {
                        sessionStorage.setItem("windlass-try", named(entry.right, model));
                        go(`api/post${entry.route}`);
                      },
                    },
                  },
                  t("tryIt"),
                ),
              )
            : null,
        )
      : null,
    h("p", { class: "hint" }, h("a", { href: `/errors/${entry.code}` }, t("plain"))),
  );
}

function body(label, kind, text, other, model, button) {
  return h(
    "div",
    { class: "stack tight" },
    h("span", { class: `badge ${kind}` }, label),
    h(
      "div",
      { class: "code" },
      h("pre", { tabindex: "0", "aria-label": label }, marked(named(text, model), named(other, model))),
      button,
    ),
  );
}

/** Mark what differs from the other body: all between the common beginning and the common end. */
function marked(text, other) {
  let from = 0,
    until = 0;
  while (from < Math.min(text.length, other.length) && text[from] === other[from]) from += 1;
  while (until < Math.min(text.length, other.length) - from && text.at(-1 - until) === other.at(-1 - until)) until += 1;
  const end = text.length - until;
  return [text.slice(0, from), end > from ? h("mark", {}, text.slice(from, end)) : null, text.slice(end)];
}

const back = (t) => h("p", {}, h("a", { href: "#/errors" }, `← ${t("all")}`));
const named = (text, model) => text.replaceAll('"MODEL"', JSON.stringify(model));

/** A model that is really there, for examples that can be sent as they are. */
async function liveModel({ api, scopes }) {
  if (!scopes.includes("use")) return "MODEL";
  return api.call("/v1/models").then(
    ({ data }) => data[0]?.id ?? "MODEL",
    () => "MODEL",
  );
}
