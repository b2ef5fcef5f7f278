// Numbers as people type them into the planner: "7B", "1.4T", "50k", "14d". Empty is null, what is no number NaN.

const UNITS = { k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12 };
const TIMES = { s: 1, m: 60, min: 60, h: 3600, d: 86400, w: 604800 };

export function readCount(text) {
  if (text.trim() === "") return null;
  const found = /^\$?\s*([\d.,_]+)\s*([kmbgt])?$/i.exec(text.trim());
  return found ? Number(found[1].replace(/[,_]/g, "")) * (UNITS[found[2]?.toLowerCase()] ?? 1) : NaN;
}

export function readTime(text) {
  if (text.trim() === "") return null;
  const parts = [...text.matchAll(/([\d.]+)\s*([a-z]+)/gi)], bare = (each) => each.replace(/\s/g, "");
  if (!parts.length || bare(parts.map((part) => part[0]).join("")) !== bare(text)) return NaN;
  return parts.reduce((sum, [, number, unit]) => sum + Number(number) * (TIMES[unit.toLowerCase()] ?? NaN), 0);
}

export function writeCount(value) {
  if (value === null) return "";
  const [unit, size] = [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]].find(([, least]) => value >= least) ?? ["", 1];
  return `${Number((value / size).toPrecision(4))}${unit}`;
}

export function writeTime(value) {
  if (value === null) return "";
  return value % 86400 === 0 ? `${value / 86400}d` : `${Number((value / 3600).toPrecision(4))}h`;
}
