// Small charts: lines, a cloud of points with its front, stacked bars. SVG that follows the width it is given,
// read with the pointer or with the arrow keys, and always there as a table too.
//
//   const loss = chart({ title, words: { table } });  place.append(loss.element);  loss.draw(lines({...}));
//
// A painter (lines, cloud, bars) takes data and returns a function of the width; nothing here knows what is drawn.

import { h, s } from "./dom.js";

const LEFT = 56, RIGHT = 14, TOP = 26, BOTTOM = 40;
const LONG_TIMES = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 432000, 864000,
  1728000, 2592000, 5184000, 15552000, 31536000, 63072000, 157680000, 315360000];

/** Make a chart that is empty until `draw` is called; `close` ends its watch over the width. */
export function chart({ title, words, height = 220, named = true }) {
  const tip = h("p", { class: "chart-tip", role: "status" });
  const plot = h("div", { class: "chart-plot" });
  const legend = h("ul", { class: "chart-legend" });
  const table = h("div", { class: "chart-table" });
  const details = h("details", {}, h("summary", {}, words.table), table);
  const caption = h("figcaption", {}, h("span", { class: named ? null : "unseen" }, title), legend);
  const element = h("figure", { class: "chart" }, caption, plot, tip, details);
  let paint = null, picture = null, at = -1;

  function redraw() {
    if (!paint || !plot.clientWidth) return;
    const held = document.activeElement === plot.firstChild;
    picture = paint(plot.clientWidth, height);
    const svg = s("svg", { role: "img", tabindex: 0, width: plot.clientWidth, height: picture.height,
      viewBox: `0 0 ${plot.clientWidth} ${picture.height}`, "aria-label": `${title}. ${picture.summary ?? ""}`.trim() },
      ...picture.nodes, s("g", { class: "chart-pointer" }));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      point(picture.nearest(event.clientX - box.left, event.clientY - box.top));
    });
    svg.addEventListener("pointerleave", () => { if (document.activeElement !== svg) point(-1); });
    svg.addEventListener("blur", () => point(-1));
    svg.addEventListener("keydown", walk);
    plot.replaceChildren(svg);
    if (held) svg.focus({ preventScroll: true });
    point(at < picture.targets.length ? at : -1);
    legend.replaceChildren(...picture.legend.map(({ tone, name, dashed }) =>
      h("li", { class: `tone-${tone}${dashed ? " dashed" : ""}` }, name)));
    if (details.open) fill();
  }

  function walk(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const last = picture.targets.length - 1;
    if (event.key === "Home") point(0);
    else if (event.key === "End") point(last);
    else if (event.key === "Escape") point(-1);
    else if (step) point(at < 0 ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, at + step)));
    else return;
    event.preventDefault();
  }

  function point(index) {
    at = index;
    const target = picture.targets[index];
    tip.textContent = target ? target.text : "";
    plot.firstChild?.lastChild.replaceChildren(...(target ? target.mark() : []));
  }

  function fill() {
    const { heads, rows } = picture.table;
    table.replaceChildren(h("table", {}, h("caption", { class: "unseen" }, title),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
  }

  details.addEventListener("toggle", () => { if (details.open && picture) fill(); });
  const watch = new ResizeObserver(redraw);
  watch.observe(plot);
  return {
    element,
    draw(painter) { paint = painter; redraw(); },
    close() { watch.disconnect(); },
  };
}

/** Lines over a common x: series [{name, tone, points: [[x, y]], dots}], levels [{name, tone, value}] across all. */
export function lines({ x, y, series, levels = [], most = 600 }) {
  return (width, height) => {
    const shown = series.map((each) => ({ ...each, points: thin(each.points.filter(([, v]) => v !== null), most) }));
    const across = scale(shown.flatMap((each) => each.points.map((p) => p[0])), LEFT, width - RIGHT, { ...x, tight: true });
    const ups = shown.flatMap((each) => each.points.map((p) => p[1]));
    const up = scale([...ups, ...levels.map((level) => level.value)], height - BOTTOM, TOP, y);
    const nodes = [...frame(across, up, x, y, width, height)];
    for (const level of levels) {
      const at = up.at(level.value);
      nodes.push(s("line", { class: `level tone-${level.tone}`, x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
    }
    for (const { points, tone, dots } of shown) {
      nodes.push(s("path", { class: `line tone-${tone}`, d: along(points.map(([a, b]) => [across.at(a), up.at(b)])) }));
      if (dots || points.length === 1) nodes.push(...points.map(([a, b]) => dot(tone, across.at(a), up.at(b), 3)));
    }
    const stops = [...new Set(shown.flatMap((each) => each.points.map((p) => p[0])))].sort((a, b) => a - b);
    const found = shown.map((each) => new Map(each.points));
    const having = (stop, give) => shown.flatMap((each, n) => (found[n].has(stop) ? [give(each, found[n].get(stop))] : []));
    const targets = stops.map((stop) => ({
      at: across.at(stop),
      text: [`${x.label} ${x.format(stop)}`, ...having(stop, (each, value) => `${each.name} ${y.format(value)}`)].join(" · "),
      mark: () => [
        s("line", { class: "cross", x1: across.at(stop), x2: across.at(stop), y1: TOP, y2: height - BOTTOM }),
        ...having(stop, (each, value) => dot(each.tone, across.at(stop), up.at(value), 4)),
      ],
    }));
    return {
      height, nodes, targets,
      nearest: (px) => closest(targets, (target) => Math.abs(target.at - px)),
      legend: [...shown.filter((each) => each.points.length), ...levels.map((level) => ({ ...level, dashed: true }))],
      summary: [...shown.filter((each) => each.points.length).map((each) => `${each.name} ${y.format(each.points.at(-1)[1])}`),
        ...levels.map((level) => `${level.name} ${y.format(level.value)}`)].join("; "),
      table: {
        heads: [x.label, ...shown.map((each) => each.name)],
        rows: stops.map((stop) => [x.format(stop), ...found.map((each) => (each.has(stop) ? y.format(each.get(stop)) : ""))]),
      },
    };
  };
}

/** Points [{x, y, tone, text, cells, r, front}]; those of the front are joined, and reached with the keys. */
export function cloud({ x, y, points, legend, heads }) {
  return (width, height) => {
    const across = scale(points.map((p) => p.x), LEFT, width - RIGHT, x);
    const up = scale(points.map((p) => p.y), height - BOTTOM, TOP, y);
    const place = (p) => ({ cx: round(across.at(p.x)), cy: round(up.at(p.y)), r: p.r ?? 4 });
    const front = points.filter((p) => p.front).sort((a, b) => a.x - b.x || a.y - b.y);
    const edge = front.filter((p) => !front.some((q) => q !== p && q.x <= p.x && q.y <= p.y && (q.x < p.x || q.y < p.y)));
    const nodes = [...frame(across, up, x, y, width, height),
      s("path", { class: "edge", d: along(edge.map((p) => [across.at(p.x), up.at(p.y)])) }),
      ...points.map((p) => s("circle", { class: `point tone-${p.tone}`, ...place(p) }))];
    const order = [...front, ...points.filter((p) => !p.front)];
    const ring = (p) => s("circle", { class: "ring", ...place(p), r: (p.r ?? 4) + 4 });
    const targets = order.map((p) => ({ ...place(p), text: p.text, mark: () => [ring(p)] }));
    return {
      height, nodes, targets, legend,
      nearest: (px, py) => {
        const found = closest(targets, (target) => Math.hypot(target.cx - px, target.cy - py));
        return found >= 0 && Math.hypot(targets[found].cx - px, targets[found].cy - py) < 40 ? found : -1;
      },
      table: { heads, rows: order.filter((p) => p.cells).map((p) => p.cells) },
    };
  };
}

/** Rows of parts that add up: [{label, parts: [{name, value, tone}], limit}]; a row's limit is a dashed line. */
export function bars({ rows, format, limit, heads }) {
  const step = rows.some((row) => row.label) ? 58 : 34;
  return (width) => {
    const most = Math.max(1e-9, ...rows.map((row) => Math.max(row.limit ?? 0, sum(row.parts))));
    const across = (value) => (value / most) * (width - 2);
    const nodes = [], targets = [];
    rows.forEach((row, n) => {
      const y = n * step + (row.label ? 24 : 4);
      if (row.label) nodes.push(s("text", { class: "name", x: 1, y: y - 8 }, row.label));
      let from = 0;
      for (const part of row.parts.filter((each) => each.value > 0)) {
        const box = { x: round(1 + across(from)), y, width: Math.max(.5, round(across(part.value))), height: 24 };
        nodes.push(s("rect", { class: `part tone-${part.tone}`, ...box }));
        const text = [row.label, part.name, format(part.value)].filter(Boolean).join(" · ");
        targets.push({ box, text, mark: () => [s("rect", { class: "ring", ...box })] });
        from += part.value;
      }
      const end = 1 + across(row.limit ?? 0);
      if (row.limit) nodes.push(s("line", { class: "limit", x1: end, x2: end, y1: y - 5, y2: y + 29 }));
    });
    const names = new Map(rows.flatMap((row) => row.parts.filter((p) => p.value > 0).map((part) => [part.name, part.tone])));
    return {
      height: rows.length * step + (rows.some((row) => row.label) ? 4 : 6), nodes, targets,
      nearest: (px, py) =>
        targets.findIndex(({ box }) => px >= box.x && px < box.x + box.width && py >= box.y - 6 && py < box.y + 32),
      legend: [...[...names].map(([name, tone]) => ({ name, tone })), ...(limit ? [{ name: limit, tone: "limit" }] : [])],
      summary: rows.map((row) => [row.label, format(sum(row.parts))].filter(Boolean).join(" ")).join("; "),
      table: { heads, rows: rows.flatMap((row) => [
        ...row.parts.filter((part) => part.value > 0).map((part) => [row.label, part.name, format(part.value)]),
        ...(row.limit ? [[row.label, limit, format(row.limit)]] : [])].map((cells) => cells.filter((cell) => cell !== undefined))) },
    };
  };
}

/** Axes with round numbers on them: `log`, from `zero`, of `time`, or `tight` without a margin. */
function scale(values, from, to, { log = false, zero = false, time = false, tight = false }) {
  const seen = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  let low = Math.min(...seen), high = Math.max(...seen);
  if (!seen.length) [low, high] = [log ? 1 : 0, log ? 10 : 1];
  if (zero) low = Math.min(0, low);
  if (log) [low, high] = [low / 1.15, high * 1.15];
  else if (low === high) [low, high] = [low - Math.abs(low || 1) * .1, high + Math.abs(high || 1) * .1];
  else if (!zero && !tight) { const room = (high - low) * .06; low -= room; high += room; }
  else if (!tight) high *= 1.06;
  const f = log ? Math.log : (value) => value;
  const at = (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  return { at, low, high, ticks: (many) => ticks(low, high, many, { log, time }) };
}

function ticks(low, high, many, { log, time }) {
  if (log) {
    const within = (marks) => marks.filter((mark) => mark >= low && mark <= high);
    const tens = (of) => Array.from({ length: 25 }, (_, n) => of.map((first) => Number(`${first}e${n - 6}`))).flat();
    const few = within(time ? LONG_TIMES : tens([1, 2, 5]));
    const found = few.length < 3 && !time ? within(tens([1, 1.5, 2, 3, 4, 5, 6, 8])) : few;
    const every = Math.ceil(found.length / many);
    return found.length ? found.filter((_, n) => n % every === 0) : [Number(((low + high) / 2).toPrecision(2))];
  }
  const rough = (high - low) / many, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  const begin = Math.ceil(low / step), count = Math.floor(high / step + 1e-6) - begin + 1;
  for (let n = 0; n < count; n += 1) found.push(Number(((begin + n) * step).toPrecision(12)));
  return found;
}

function frame(across, up, x, y, width, height) {
  const bottom = height - BOTTOM;
  return [
    ...up.ticks(5).flatMap((mark) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: up.at(mark), y2: up.at(mark) }),
      s("text", { class: "tick end", x: LEFT - 8, y: up.at(mark) + 4 }, y.format(mark)),
    ]),
    ...across.ticks(Math.max(2, Math.floor(width / 90))).map((mark) =>
      s("text", { class: "tick middle", x: across.at(mark), y: bottom + 17 }, x.format(mark))),
    s("text", { class: "axis end", x: width - RIGHT, y: bottom + 34 }, x.label),
    s("text", { class: "axis", x: 0, y: 11 }, y.label),
  ];
}

/** Keep the extremes of every stretch, so that a long line stays what it is. */
function thin(points, most) {
  if (points.length <= most) return points;
  const size = Math.ceil(points.length / (most / 2)), kept = [];
  for (let from = 0; from < points.length; from += size) {
    const part = points.slice(from, from + size);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low[0] < high[0] ? [low, high] : low === high ? [low] : [high, low]));
  }
  if (kept.at(-1) !== points.at(-1)) kept.push(points.at(-1));
  return kept;
}

function closest(targets, distance) {
  let best = -1, least = Infinity;
  targets.forEach((target, n) => { const d = distance(target); if (d < least) [best, least] = [n, d]; });
  return best;
}

const along = (points) => points.map(([x, y], n) => `${n ? "L" : "M"}${round(x)} ${round(y)}`).join("");
const dot = (tone, cx, cy, r) => s("circle", { class: `dot tone-${tone}`, cx, cy, r });
const round = (value) => Math.round(value * 10) / 10;
const sum = (parts) => parts.reduce((total, part) => total + part.value, 0);
