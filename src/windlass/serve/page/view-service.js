// The service: replicas and health, routes, limits and usage; keys and tenants (view-service-keys.js); the audit log.

import { h, show as put } from "./dom.js";
import { figuresFor } from "./figures.js";
import { chip, dress, figure, figures, panel, refresh, repeat, share, table, used } from "./panels.js";
import { auditLog } from "./view-service-audit.js";
import { keyPanels } from "./view-service-keys.js";
import { words } from "./view-service-words.js";

const LOOK_EVERY_MS = 4000;
const HEALTH = { ready: "good", unhealthy: "wrong", draining: "warn" };

export { words };
export const title = "title";

export async function show(root, context) {
  const { api, t, language, announce } = context;
  await dress();
  const format = figuresFor(language), ending = new AbortController();
  const get = (path) => api.call(path, { signal: ending.signal });
  const wrong = h("div", {}), done = h("p", { role: "status", class: "done" });
  const parts = ["replicas", "budgets", "keys", "audit"];
  const place = Object.fromEntries(parts.map((part) => [part, h("div", { class: "stack" })]));
  put(root, h("h1", {}, t("title")), h("p", { class: "lead" }, t("intro")), wrong, done, Object.values(place));
  let stored = true, log = null;

  async function look() {
    const replicas = await get("/admin/replicas");
    refresh(place.replicas, replicas, () => [panel(t("replicas"), health(replicas, t, format)), routes(replicas, t, format)]);
    if (!stored) return;
    try {
      const [keys, tenants, budgets] = await Promise.all(["keys", "tenants", "limits"].map((part) => get(`/admin/${part}`)));
      refresh(place.keys, [keys, tenants], () => keyPanels(keys.data, tenants.data, format, { ...context, tell }));
      refresh(place.budgets, [budgets, keys], () => panel(t("budgets"), usage(budgets.data, keys.data, t, format)));
    } catch (failure) {
      if (failure.code !== "not_found") throw failure;
      stored = false;
      put(place.keys, h("p", { class: "hint card" }, t("noState")));
    }
    if (stored && !log) {
      log = auditLog(get, t, format);
      put(place.audit, panel(t("audit"), log.element));
      await log.look();
    }
  }

  /** Say what was done, and show what has become of it. */
  async function tell(text) {
    done.textContent = text;
    announce(text);
    await looking.now();
    await log?.look();
  }

  const looking = repeat(look, wrong, t, LOOK_EVERY_MS);
  await looking.now();
  return () => { looking.end(); ending.abort(); };
}

function health({ data, brownout, revision }, t, format) {
  const ready = data.filter((each) => each.state === "ready" && each.connected).length;
  const answers = data.reduce((sum, each) => sum + each.answers, 0);
  const rows = data.map((each) => [each.name, each.models.join(", "), chip(t(`state_${each.state}`), HEALTH[each.state]),
    chip(t(each.connected ? "yes" : "no"), each.connected ? "good" : "wrong"), format.count(each.answers)]);
  return [
    figures(figure(t("ready"), `${ready} / ${data.length}`, t("revision", { revision })),
      figure(t("answering"), format.count(answers)),
      figure(t("level"), String(brownout), t(`level_${Math.min(4, brownout)}`))),
    table(t("replicas"), [t("name"), t("models"), t("state"), t("connected"), t("answers")], rows, t("noReplicas")),
  ];
}

/** What bare names mean while versions share their requests. */
function routes({ routes: all }, t, format) {
  const shares = (weights) => Object.entries(weights).map(([model, weight]) =>
    h("span", { class: "row tight" }, share(weight), `${model} ${format.share(weight)}`));
  const rows = Object.entries(all).map(([name, route]) =>
    [name, shares(route.weights), shares(route.shadow), route.standby.join(", ")]);
  if (!rows.length) return null;
  return panel(t("routes"), table(t("routes"), [t("route"), t("weights"), t("shadow"), t("standby")], rows));
}

/** Budgets that gateways have counted; what is leased to a gateway is spent there without another request. */
function usage(budgets, keys, t, format) {
  const named = new Map(keys.map((each) => [each.id, each.name]));
  const rows = budgets.map((each) => {
    const [kind, ...rest] = each.scope.split(":"), name = rest.join(":"), gone = Math.max(0, each.capacity - each.left);
    return [
      t(`scope_${kind}`, { name: named.get(name) ?? name }), t(`budget_${each.kind}`),
      h("span", { class: "row tight" }, used(gone, each.capacity),
        t("usedOf", { used: format.count(gone), most: format.count(each.capacity) })),
      format.count(each.left), `${format.count(each.lent)} (${each.gateways})`];
  });
  return table(t("budgets"), [t("subject"), t("kindOf"), t("used"), t("left"), t("lent")], rows, t("noBudgets"));
}
