// The API reference, made from the server's own OpenAPI document: every operation, field, range and error.

import { words } from "./api-words.js";
import { tryOut } from "./api-try.js";
import { codeTabs } from "./code.js";
import { menu, operations } from "./api-menu.js";
import { errorTable, fieldTable, parameterTable } from "./api-tables.js";
import { h, show as put } from "./dom.js";
import { bodySchema, example, loadDocument, replySchema } from "./schema.js";

export { words };
export const title = "title";

const FIRST_TEXTS = {
  prompt: "Once upon a time",
  input: "Once upon a time",
  text: "Once upon a time",
  role: "user",
  content: "Hello!",
  route: "/v1/completions",
};

export async function show(root, context) {
  const { api, rest, t, scopes } = context;
  const document = await loadDocument(api);
  const all = operations(document).filter((each) => !each.scope || scopes.includes(each.scope));
  const chosen = all.find((each) => each.address.replace(/\/$/, "") === rest.join("/")) ?? all[0];
  const models = await api.call("/v1/models").then(
    ({ data }) => data.map((each) => each.id),
    () => [],
  );
  const place = h("article", { class: "stack operation", "aria-labelledby": "operation" });
  put(root, h("div", { class: "reference" }, menu(all, chosen, t), place));
  return one(place, chosen, document, models[0] ?? "MODEL", context);
}

function one(place, operation, document, model, context) {
  const { t } = context;
  const schema = bodySchema(document, operation),
    reply = replySchema(document, operation);
  const starts = schema
    ? (sessionStorage.getItem("windlass-try") ?? JSON.stringify(started(document, schema, model), null, 2))
    : null;
  sessionStorage.removeItem("windlass-try");
  const trial = tryOut(operation, document, starts, context);
  let last = trial.request();
  const code = codeTabs(() => {
    const now = trial.request();
    if (!schema || now.body !== undefined) last = now;
    return last;
  }, context);
  trial.onChange(() => code.refresh());
  put(
    place,
    h(
      "header",
      { class: "stack tight" },
      h(
        "h2",
        { id: "operation", class: "path" },
        h("span", { class: `method ${operation.method.toLowerCase()}` }, operation.method),
        " ",
        operation.path,
      ),
      h("p", {}, operation.description),
      h("p", {}, h("span", { class: "badge" }, operation.scope ? t("scope", { scope: operation.scope }) : t("open"))),
    ),
    h("section", { class: "card stack", "aria-label": t("tryIt") }, h("h3", {}, t("tryIt")), trial.element),
    h("section", { class: "stack tight" }, h("h3", {}, t("examples")), code),
    parameterTable(operation, document, t),
    schema ? h("section", { class: "stack tight" }, h("h3", {}, t("body")), fieldTable(document, schema, t)) : null,
    reply
      ? h(
          "section",
          { class: "stack tight" },
          h("h3", {}, t("answer")),
          h("p", { class: "hint" }, reply.description ?? ""),
          fieldTable(document, reply, t),
        )
      : null,
    errorTable(operation, t),
  );
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

