// Confirms an action: says what will happen, runs it while the dialog is open, and shows a failure in it.

import { failureBox, h, show } from "./dom.js";

/**
 * Ask, and return what `work` gave, or null when nothing was done. `says` are sentences on what will happen, `fields` are
 * controls to fill in; with `grave` the way back is what the keyboard finds first. Escape always is a way back.
 */
export function confirm({ t, title, says = [], fields = [], yes, grave = false, work }) {
  const wrong = h("div", {});
  const no = h("button", { type: "button", on: { click: () => box.close() } }, t("cancel"));
  const go = h("button", { type: "submit", class: grave ? "danger" : "primary" }, yes);
  const form = h("form", { class: "stack", on: { submit } },
    h("h2", { id: "dialog-title" }, title),
    h("div", { id: "dialog-says", class: "stack" }, says.filter(Boolean).map((text) => h("p", {}, text))),
    fields, wrong, h("div", { class: "row end" }, no, go));
  const box = h("dialog", { class: "ask", "aria-labelledby": "dialog-title", "aria-describedby": "dialog-says" }, form);
  let given = null;

  async function submit(event) {
    event.preventDefault();
    go.disabled = true;
    show(wrong);
    try {
      given = await work();
      box.close();
    } catch (failure) {
      show(wrong, failureBox(failure, t));
    } finally {
      go.disabled = false;
    }
  }

  return new Promise((resolve) => {
    box.addEventListener("close", () => { box.remove(); resolve(given); });
    document.body.append(box);
    box.showModal();
    (form.querySelector(".field :is(input, select)") ?? (grave ? no : go)).focus();
  });
}

/** Show something once, such as a key that cannot be read again; it is closed only by saying so. */
export function tell({ t, title, says = [], content = [], done }) {
  const box = h("dialog", { class: "ask", "aria-labelledby": "dialog-title" },
    h("div", { class: "stack" }, h("h2", { id: "dialog-title" }, title), says.map((text) => h("p", {}, text)), content,
      h("div", { class: "row end" },
        h("button", { type: "button", class: "primary", on: { click: () => box.close() } }, done ?? t("close")))));
  return new Promise((resolve) => {
    box.addEventListener("cancel", (event) => event.preventDefault());
    box.addEventListener("close", () => { box.remove(); resolve(); });
    document.body.append(box);
    box.showModal();
  });
}
