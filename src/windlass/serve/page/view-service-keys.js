// Keys and tenants: made, limited, rotated, revoked, suspended; a key is shown once, when it is made.

import { confirm, tell as once } from "./dialog.js";
import { copyButton, field, h, select } from "./dom.js";
import { button, chip, panel, table } from "./panels.js";

const SCOPES = ["use", "metrics", "admin"];
const LIMITS = ["requests_per_second", "burst", "tokens_per_minute", "tokens_per_day", "concurrent", "queue", "queue_tokens"];
const DAY_S = 86400, HOUR_S = 3600;

export const keyPanels = (keys, tenants, format, context) =>
  [keyPanel(keys, tenants, format, context), tenantPanel(tenants, format, context)];

function keyPanel(keys, tenants, format, context) {
  const { t } = context;
  const live = keys.filter((each) => !each.refused), gone = keys.filter((each) => each.refused);
  const heads = ["name", "tenant", "scopes", "state", "expires", "limits"].map((word) => t(word));
  const row = (each) => [
    each.name, each.tenant, each.scopes.join(", "), each.refused ? chip(each.refused, "wrong") : chip(t("opens"), "good"),
    each.expires_s ? format.when(each.expires_s) : t("never"), limitWords(each.limits, t, format)];
  const acts = (each) => h("span", { class: "row tight" },
    button(t("limitsButton"), () => limitKey(each, context), "small"),
    button(t("rotate"), () => rotate(each, context), "small"),
    button(t("revoke"), () => revoke(each, context), "small danger"));
  return panel(t("keys"),
    h("p", {}, button(t("makeKey"), () => makeKey(tenants, context), "primary")),
    table(t("keys"), [...heads, t("actions")], live.map((each) => [...row(each), acts(each)]), t("noKeys")),
    gone.length ? h("details", {}, h("summary", {}, t("showRevoked", { count: gone.length })),
      table(t("goneKeys"), heads, gone.map(row))) : null);
}

function tenantPanel(tenants, format, context) {
  const { t } = context;
  const rows = tenants.map((each) => [
    each.name, each.suspended_s ? chip(t("suspended"), "wrong") : chip(t("active"), "good"),
    limitWords(each.limits, t, format), each.made_s ? format.when(each.made_s) : "–",
    h("span", { class: "row tight" },
      button(t("limitsButton"), () => limitTenant(each, context), "small"), suspension(each, context))]);
  return panel(t("tenants"), h("p", {}, button(t("makeTenant"), () => makeTenant(context))),
    table(t("tenants"), ["name", "state", "limits", "made", "actions"].map((word) => t(word)), rows, t("noTenants")));
}

function limitWords(limits, t, format) {
  const set = Object.entries(limits ?? {}).filter(([, value]) => value !== null);
  return set.length ? set.map(([key, value]) => `${t(`limit_${key}`)} ${format.count(value)}`).join(", ") : t("asUsual");
}

const nameInput = () => h("input", {
  type: "text", required: true, maxlength: 128, pattern: "[a-z0-9][a-z0-9._\\-]*", autocomplete: "off", spellcheck: "false" });

async function makeKey(tenants, context) {
  const { api, t } = context;
  const name = nameInput(), tenant = select({}, tenants.map((each) => each.name));
  const days = h("input", { type: "number", min: 1, max: 36500, step: 1 });
  const boxes = SCOPES.map((scope) => h("input", { type: "checkbox", value: scope, checked: scope === "use" }));
  const scopes = h("fieldset", { class: "stack tight" }, h("legend", {}, t("scopes")),
    boxes.map((box) => h("label", { class: "check" }, box, t(`scope_${box.value}`))));
  const answer = await confirm({
    t, title: t("makeKeyTitle"), says: [t("makeKeySays")], yes: t("makeYes"),
    fields: [field(t("name"), name, t("nameHint")), field(t("tenant"), tenant), scopes,
      field(t("expiresDays"), days, t("expiresHint"))],
    work: () => {
      const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
      if (!chosen.length) throw new Error(t("noScope"));
      const expires = days.value === "" ? {} : { expires_in_s: days.valueAsNumber * DAY_S };
      return api.call("/admin/keys", { body: { name: name.value, tenant: tenant.value, scopes: chosen, ...expires } });
    },
  });
  if (answer) await reveal(answer, "madeKey", context);
}

async function rotate(key, context) {
  const { api, t } = context;
  const hours = h("input", { type: "number", min: 0, max: 876000, step: "any", value: 0, required: true });
  const body = () => ({ grace_s: hours.valueAsNumber * HOUR_S });
  const answer = await confirm({
    t, title: t("rotateTitle", key), says: [t("rotateSays")], fields: [field(t("grace"), hours)], yes: t("rotateYes"),
    work: () => api.call(`/admin/keys/${encodeURIComponent(key.id)}/rotate`, { body: body() }),
  });
  if (answer) await reveal(answer, "rotated", context);
}

/** Show a key, which the server cannot show again. */
async function reveal({ key, token }, word, { t, announce, tell }) {
  const told = tell(t(word, key));
  const content = h("p", { class: "row" }, h("code", { class: "token" }, token), copyButton(token, t, announce));
  await once({ t, title: t("keyMade", key), says: [t("keyOnce")], content, done: t("keyDone") });
  await told;
}

async function revoke(key, { api, t, tell }) {
  const answer = await confirm({
    t, title: t("revokeTitle", key), says: [t("revokeSays")], yes: t("revokeYes"), grave: true,
    work: () => api.call(`/admin/keys/${encodeURIComponent(key.id)}/revoke`, { method: "POST" }),
  });
  if (answer) await tell(t("revoked", answer));
}

const limitKey = (key, context) => limit(key, context, ["limitsSays", "limitsNone"], (limits) =>
  context.api.call(`/admin/keys/${encodeURIComponent(key.id)}/limits`, { method: "PUT", body: { limits } }));

const limitTenant = (tenant, context) => limit(tenant, context, ["limitsSays"], (limits) =>
  context.api.call(`/admin/tenants/${encodeURIComponent(tenant.name)}`, { method: "PATCH", body: { limits: limits ?? {} } }));

async function limit(whose, { t, tell }, says, write) {
  const inputs = LIMITS.map((key) => h("input", {
    type: "number", min: 0, step: key === "requests_per_second" ? "any" : 1, value: whose.limits?.[key] ?? "" }));
  const answer = await confirm({
    t, title: t("limitsTitle", whose), says: says.map((word) => t(word)), yes: t("limitsYes"),
    fields: [h("div", { class: "grid" }, inputs.map((input, n) => field(t(`limit_${LIMITS[n]}`), input)))],
    work: () => {
      const given = inputs.flatMap((input, n) => (input.value === "" ? [] : [[LIMITS[n], input.valueAsNumber]]));
      return write(given.length ? Object.fromEntries(given) : null);
    },
  });
  if (answer) await tell(t("limited", whose));
}

function suspension(tenant, { api, t, tell }) {
  const word = tenant.suspended_s ? "release" : "suspend";
  const path = `/admin/tenants/${encodeURIComponent(tenant.name)}`;
  return button(t(word), async () => {
    const answer = await confirm({
      t, title: t(`${word}Title`, tenant), says: [t(`${word}Says`)], yes: t(`${word}Yes`), grave: word === "suspend",
      work: () => api.call(path, { method: "PATCH", body: { suspended: !tenant.suspended_s } }),
    });
    if (answer) await tell(t("changedTenant", tenant));
  }, word === "suspend" ? "small danger" : "small");
}

async function makeTenant({ api, t, tell }) {
  const name = nameInput();
  const answer = await confirm({
    t, title: t("makeTenantTitle"), says: [t("makeTenantSays")], yes: t("makeYes"),
    fields: [field(t("name"), name, t("nameHint"))],
    work: () => api.call("/admin/tenants", { body: { name: name.value } }),
  });
  if (answer) await tell(t("madeTenant", answer));
}
