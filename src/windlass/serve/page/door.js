// The way in: asks for a key when the service wants one, and tells why a key was refused.

import { field, h, show } from "./dom.js";
import { keep } from "./key.js";

/** Show the door in `root`; `reason` is the code of a refusal, or null. `enter` is called once a key was given. */
export function door(root, { t, reason, enter }) {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", id: "key" });
  const alarm = h("p", { class: "failure", role: "alert", hidden: true });
  const form = h(
    "form",
    { class: "door card stack", "aria-labelledby": "door-title", on: { submit } },
    h("h1", { id: "door-title" }, t("signIn")),
    alarm,
    field(t("key"), input, t("signInHint")),
    h(
      "div",
      { class: "row" },
      h("button", { type: "submit", class: "primary" }, t("signIn")),
      h("a", { href: "#/errors" }, t("errorsOpen")),
    ),
  );
  function tell(word) {
    alarm.textContent = t(word);
    alarm.hidden = false;
    input.focus();
  }
  function submit(event) {
    event.preventDefault();
    const token = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) return tell("noKey");
    keep(token);
    enter();
  }
  show(root, form);
  if (reason) tell(`door_${reason}`);
  input.focus();
}
