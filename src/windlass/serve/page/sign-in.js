// The sign-in form: takes a key when the service needs one, and says why a key was refused.

import { field, h, show } from "./dom.js";
import { keep } from "./key.js";

/** Show the form in `root`; `reason` is the code of the last refusal, or null. `enter` is called once a key was given. */
export function signIn(root, { t, reason, enter }) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", id: "key" });
  const alarm = h("p", { class: "failure", role: "alert", hidden: true });
  const form = h(
    "form",
    { class: "sign-in card stack", "aria-labelledby": "sign-in-title", on: { submit } },
    h("h1", { id: "sign-in-title" }, t("signIn")),
    alarm,
    field(t("key"), input, t("signInHint")),
    h(
      "div",
      { class: "row" },
      h("button", { type: "submit", class: "primary" }, t("signIn")),
      h("a", { href: "#/errors" }, t("errorsOpen")),
    ),
  );
  function warn(key) {
    alarm.textContent = t(key);
    alarm.hidden = false;
    input.focus();
  }
  function submit(event) {
    event.preventDefault();
    const token = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) return warn("noKey");
    keep(token);
    enter();
  }
  show(root, form);
  if (reason) warn(`signin_${reason}`);
  input.focus();
}
