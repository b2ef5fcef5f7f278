// Numbers as people read them, in the language of the page. Seconds, bytes and dollars come in as plain numbers.

const PARTS = { en: ["d", "h", " min", " s", " ms"], zh: [" 天", " 小时", " 分", " 秒", " 毫秒"] };
const LONG = [86400, 3600, 60, 1];

/** The formats of one language: `count`, `number`, `seconds`, `bytes`, `dollars`, `share`, `when`, `ago`. */
export function figuresFor(language) {
  const zh = String(language).startsWith("zh");
  const units = zh ? PARTS.zh : PARTS.en;
  const plain = (digits) => new Intl.NumberFormat("en", { maximumSignificantDigits: digits, useGrouping: true });
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const clock = new Intl.DateTimeFormat(zh ? "zh-CN" : "en-GB", { dateStyle: "medium", timeStyle: "medium" });

  const known = (format) => (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : format(value));
  const count = known((value) => (Math.abs(value) < 10000 ? plain(value < 10 ? 3 : 4).format(value) : compact.format(value)));
  const number = known((value) => (value !== 0 && Math.abs(value) < 1e-6 ? value.toExponential(2) : plain(4).format(value)));
  const seconds = known((value) => spell(value, units));
  const bytes = known((value) => {
    const power = value < 1024 ? 0 : Math.min(5, Math.floor(Math.log(value) / Math.log(1024)));
    return `${plain(3).format(value / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
  });
  const cents = (value) => (value < 10 ? value.toFixed(2) : value < 10000 ? plain(4).format(Math.round(value)) : compact.format(value));
  const dollar = (value) => `$${cents(value)}`;
  const dollars = known((value) => {
    if (!Array.isArray(value)) return dollar(value);
    return value[0] === value[1] ? dollar(value[0]) : `${dollar(value[0])} – ${dollar(value[1])}`;
  });
  const share = known((value) => `${plain(value < 0.1 ? 2 : 3).format(value * 100)}%`);
  const when = known((value) => clock.format(new Date(value * 1000)));
  return { count, number, seconds, bytes, dollars, share, when };
}

/** The two largest units of a duration: "12d 4h", "3 min 20 s". */
function spell(value, units) {
  if (value < 1) return `${Math.round(value * 1000)}${units[4]}`;
  if (value < 10) return `${Number(value.toPrecision(2))}${units[3]}`;
  const first = Math.max(0, LONG.findIndex((length) => value >= length));
  const step = LONG[Math.min(first + 1, 3)];
  const whole = Math.round(value / step) * step;
  const at = LONG.findIndex((length) => whole >= length);
  const big = Math.floor(whole / LONG[at]), rest = Math.round((whole - big * LONG[at]) / (LONG[at + 1] ?? 1));
  const told = `${big}${units[at]}`;
  return at < 3 && rest && big < 100 ? `${told} ${rest}${units[at + 1]}` : told;
}
