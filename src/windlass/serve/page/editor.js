// The request editor: a text of JSON, with completions, fixes and explanations from POST /v1/complete-call.
//
// A server without that route leaves a plain editor. Places are counted in characters there and in UTF-16 units
// here, so they are converted on the way.

import { h, show } from "./dom.js";

const WAIT_MS = 120;
let absent = false;

/** Build the editor; `about` adds to what is asked ({ method, path }). Returns { element, value, set, end }. */
export function editor(text, { api, t, announce, about, changed, send }) {
  const number = (editor.count = (editor.count ?? 0) + 1);
  const area = h("textarea", {
    class: "editor",
    rows: String(Math.min(18, Math.max(6, text.split("\n").length + 1))),
    spellcheck: "false",
    autocapitalize: "off",
    id: `editor-${number}`,
    "aria-label": t("request"),
    "aria-autocomplete": "list",
    "aria-controls": `offers-${number}`,
    "aria-describedby": `editor-hint-${number}`,
    value: text,
    on: { input, keydown, click: soon, keyup: moved, blur: () => setTimeout(close, 200) },
  });
  const list = h("ul", {
    class: "offers",
    role: "listbox",
    id: `offers-${number}`,
    "aria-label": t("candidates"),
    hidden: true,
  });
  const explained = h("p", { class: "hint explains" });
  const fixes = h("div", { class: "row" });
  let timer = null,
    running = null,
    offered = [],
    active = -1,
    moves = false;
  let seen = ""; // the text that what is offered was made for: it fits no other

  function input() {
    changed?.();
    show(fixes);
    soon();
  }
  function soon() {
    clearTimeout(timer);
    if (!absent) timer = setTimeout(look, WAIT_MS);
  }
  async function look() {
    running?.abort();
    running = new AbortController();
    const text = area.value,
      cursor = [...text.slice(0, area.selectionStart)].length;
    try {
      const told = await api.call("/v1/complete-call", {
        body: { text, cursor, kind: "json", ...about },
        signal: running.signal,
      });
      seen = text;
      if (area.value === seen) draw(told);
    } catch (failure) {
      if (failure.status === 404 || failure.status === 405) absent = true;
      if (failure.name !== "AbortError") close();
    }
  }
  function draw(told) {
    const focused = document.activeElement === area;
    offered = focused ? told.candidates.slice(0, 30) : [];
    active = -1;
    moves = false;
    show(
      list,
      offered.map((each, n) =>
        h(
          "li",
          {
            role: "option",
            id: `offer-${number}-${n}`,
            "aria-selected": "false",
            on: {
              pointerdown: (event) => {
                event.preventDefault();
                take(n);
              },
            },
          },
          h("code", {}, each.text),
          h(
            "span",
            { class: "hint" },
            [each.type, each.range, each.default ? t("default", { value: each.default }) : "", each.about]
              .filter(Boolean)
              .join(" · "),
          ),
        ),
      ),
    );
    list.hidden = !offered.length;
    if (offered.length) choose(0, false);
    const own = told.explains;
    show(
      explained,
      own
        ? [
            h("code", {}, own.name),
            " ",
            [own.type, own.range, own.default ? t("default", { value: own.default }) : "", own.about]
              .filter(Boolean)
              .join(" · "),
          ]
        : null,
    );
    show(
      fixes,
      told.fixes.map((fix) =>
        h("button", { type: "button", class: "small", on: { click: () => replace(fix) } }, t("fix", { about: fix.about })),
      ),
    );
  }
  function choose(n, byHand = true) {
    active = (n + offered.length) % offered.length;
    moves ||= byHand;
    [...list.children].forEach((each, place) => each.setAttribute("aria-selected", String(place === active)));
    area.setAttribute("aria-activedescendant", `offer-${number}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }
  function close() {
    list.hidden = true;
    offered = [];
    area.removeAttribute("aria-activedescendant");
  }
  function take(n) {
    const chosen = offered[n];
    close();
    replace(chosen);
    announce(chosen.text);
  }
  function replace({ insert, replace: [from, to] }) {
    if (area.value !== seen) return soon();
    const characters = [...area.value];
    const before = characters.slice(0, from).join("");
    area.value = before + insert + characters.slice(to).join("");
    area.selectionStart = area.selectionEnd = before.length + insert.length;
    area.focus();
    input();
  }
  function keydown(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      close();
      return send?.();
    }
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      return void look();
    }
    if (list.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      choose(active + (event.key === "ArrowDown" ? (moves ? 1 : 0) : -1));
      moves = true;
    } else if (event.key === "Tab" || (event.key === "Enter" && moves)) {
      event.preventDefault();
      take(active);
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  }
  function moved(event) {
    if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) soon();
  }
  const element = h(
    "div",
    { class: "stack tight" },
    h("div", { class: "editing" }, area, list),
    explained,
    fixes,
    h("p", { class: "hint", id: `editor-hint-${number}` }, t("editorHint")),
  );
  return {
    element,
    get value() {
      return area.value;
    },
    set(value) {
      area.value = value;
      close();
      show(fixes);
      changed?.();
    },
    end() {
      clearTimeout(timer);
      running?.abort();
    },
  };
}
