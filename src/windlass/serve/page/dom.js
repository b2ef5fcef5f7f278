// Elements without markup in strings: h("p", { class: "hint" }, "text", child). Text is text, never HTML.

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTY = new Set(["value", "checked", "disabled", "hidden", "selected", "htmlFor", "indeterminate"]);

/** Build an element. `on` holds listeners, `data` the data-attributes, `style` CSS properties; null is left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

/** A labelled control: what screen readers say is what is seen; `about` explains below it. */
export function field(label, control, about) {
  control.id ||= `field-${(field.count = (field.count ?? 0) + 1)}`;
  const hint = about ? h("span", { class: "hint", id: `${control.id}-about` }, about) : null;
  if (hint) control.setAttribute("aria-describedby", hint.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, hint);
}

/** A select with its options: [value, text] or text. */
export function select(props, options) {
  const { value, ...rest } = props ?? {};
  const made = h(
    "select",
    rest,
    options.map((each) => {
      const [own, text] = Array.isArray(each) ? each : [each, each];
      return h("option", { value: own }, text);
    }),
  );
  if (value !== undefined) made.value = value;
  return made;
}

/** Copy text, and say on the button whether it worked. */
export function copyButton(text, t, announce) {
  const button = h("button", { type: "button", class: "quiet small", on: { click: copy } }, t("copy"));
  async function copy() {
    let said = "copied";
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
    } catch {
      said = "copyFailed";
    }
    button.textContent = t(said);
    announce(t(said));
    setTimeout(() => {
      button.textContent = t("copy");
    }, 2000);
  }
  return button;
}

/**
 * Tabs by the ARIA pattern: arrows move, one tab stop. `parts` is [[name, title, make]], make() gives the panel's content
 * when its tab is first shown. `chosen` is called with the name.
 */
export function tabs(label, parts, { first, chosen } = {}) {
  const number = (tabs.count = (tabs.count ?? 0) + 1);
  const panel = h("div", { role: "tabpanel", class: "panel", id: `panel-${number}` });
  const heads = parts.map(([name, title]) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${number}-${name}`,
        "aria-controls": panel.id,
        data: { name },
        on: { click: () => choose(name), keydown: move },
      },
      title,
    ),
  );
  function choose(name) {
    for (const head of heads) {
      const is = head.dataset.name === name;
      head.setAttribute("aria-selected", is);
      head.tabIndex = is ? 0 : -1;
      if (is) panel.setAttribute("aria-labelledby", head.id);
    }
    panel.replaceChildren(...[parts.find((part) => part[0] === name)[2]()].flat());
    chosen?.(name);
  }
  function move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = heads.indexOf(event.currentTarget),
      last = heads.length - 1;
    const next = Number.isFinite(step) ? (now + step + heads.length) % heads.length : step < 0 ? 0 : last;
    heads[next].focus();
    choose(heads[next].dataset.name);
  }
  const whole = h("div", { class: "tabs" }, h("div", { role: "tablist", "aria-label": label }, heads), panel);
  whole.choose = choose;
  choose(parts.some((part) => part[0] === first) ? first : parts[0][0]);
  return whole;
}

/** Tell a failure so that it helps: in the reader's words, with the server's, and where to read on. */
export function failureBox(failure, t) {
  const code = failure.code ?? "internal";
  const own = t.own(`failure_${code}`);
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("p", {}, h("strong", {}, own ?? failure.message)),
    own && failure.message && failure.status ? h("p", { class: "hint" }, failure.message) : null,
    failure.hint ? h("p", {}, failure.hint) : null,
    h(
      "p",
      { class: "hint" },
      failure.doc_url ? [h("a", { href: `#/errors/${code}` }, t("readMore", { code })), " "] : null,
      failure.request_id ? [t("requestId"), " ", h("code", {}, failure.request_id)] : null,
    ),
  );
}

/** Text in which `words` between backticks are code. */
export function prose(text) {
  return text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

/** Empty an element and put these in. */
export function show(place, ...children) {
  place.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return place;
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (AS_PROPERTY.has(name) && name in element) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children
      .flat(Infinity)
      .filter((each) => each !== null && each !== undefined && each !== false)
      .map((each) => (each instanceof Node ? each : String(each))),
  );
  return element;
}
