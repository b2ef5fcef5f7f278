// What the server's own OpenAPI document says: operations, fields, ranges, defaults. No other source is used.

let asked = null;

/** Fetch the document once; a failure is not kept. */
export function loadDocument(api) {
  asked ??= api.call("/openapi.json").catch((failure) => {
    asked = null;
    throw failure;
  });
  return asked;
}

/** Follow a reference into the document. */
export function resolve(document, schema) {
  if (!schema?.$ref) return schema ?? {};
  return resolve(
    document,
    schema.$ref
      .slice(2)
      .split("/")
      .reduce((place, part) => place?.[part], document),
  );
}

/** The schema of an operation's JSON body, or null. */
export function bodySchema(document, operation) {
  const schema = operation?.requestBody?.content?.["application/json"]?.schema;
  return schema ? resolve(document, schema) : null;
}

/** The schema of what an operation answers when all is well, or null. */
export function replySchema(document, operation) {
  const schema = operation?.responses?.["200"]?.content?.["application/json"]?.schema;
  return schema ? resolve(document, schema) : null;
}

/** The arms of a schema that may hold a value: references followed, null left out. */
export function arms(document, schema) {
  const whole = resolve(document, schema);
  if (whole.anyOf ?? whole.oneOf) return (whole.anyOf ?? whole.oneOf).flatMap((arm) => arms(document, arm));
  return whole.type === "null" ? [] : [whole];
}

/** All that can be said of one field: { name, kinds, least, most, step, byDefault, values, about, required, refused }. */
export function facts(document, name, schema, required = false) {
  const own = resolve(document, schema),
    found = arms(document, schema);
  const number = found.find((arm) => arm.type === "number" || arm.type === "integer");
  const whole = number?.type === "integer";
  return {
    name,
    kinds: found.map((arm) => kind(document, arm)),
    whole,
    least: number?.minimum ?? (number?.exclusiveMinimum !== undefined && whole ? number.exclusiveMinimum + 1 : undefined),
    above: whole ? undefined : number?.exclusiveMinimum,
    most: number?.maximum ?? (number?.exclusiveMaximum !== undefined && whole ? number.exclusiveMaximum - 1 : undefined),
    below: whole ? undefined : number?.exclusiveMaximum,
    lengths: lengths(found),
    pattern: found.find((arm) => arm.pattern)?.pattern,
    byDefault: schema["x-default"] ?? own["x-default"] ?? schema.default ?? own.default ?? null,
    values: found.flatMap((arm) => arm.enum ?? (arm.const === undefined ? [] : [arm.const])),
    about: schema.description ?? own.description ?? "",
    required,
    refused: found.length === 0,
    arms: found,
  };
}

/** The fields of an object schema, the required ones first, those that are only refused last. */
export function fields(document, schema) {
  const required = new Set(schema.required ?? []);
  const rank = (each) => (each.required ? 0 : each.refused ? 2 : 1);
  return Object.entries(schema.properties ?? {})
    .map(([name, each]) => facts(document, name, each, required.has(name)))
    .sort((one, other) => rank(one) - rank(other));
}

/** The range of a field in words: "0 – 2", "> 0, ≤ 1", "1 – 4096 characters". */
export function range(field, t) {
  const { least, most, above, below } = field;
  if (least !== undefined && most !== undefined) return `${short(least)} – ${short(most)}`;
  const parts = [
    least !== undefined ? `≥ ${short(least)}` : null,
    above !== undefined ? `> ${short(above)}` : null,
    most !== undefined ? `≤ ${short(most)}` : null,
    below !== undefined ? `< ${short(below)}` : null,
  ].filter(Boolean);
  if (parts.length) return parts.join(", ");
  return field.lengths.map(([least, most, of]) => t(`range_${of}`, { range: bounds(least, most) })).join("; ");
}

/** An example body: what is required, and no more; `given` has values by name, such as the model. */
export function example(document, schema, given = {}, depth = 0) {
  const whole = arms(document, schema)[0] ?? {};
  if (whole.enum) return whole.enum[0];
  if (whole.const !== undefined) return whole.const;
  if (whole.type === "object" || whole.properties) {
    const wanted = depth > 4 ? [] : (whole.required ?? []);
    return Object.fromEntries(
      wanted.map((name) => [
        name,
        given[name] !== undefined ? given[name] : example(document, whole.properties[name], given, depth + 1),
      ]),
    );
  }
  if (whole.type === "array")
    return whole.minItems || depth < 3 ? [example(document, whole.items ?? {}, given, depth + 1)] : [];
  if (whole.type === "integer" || whole.type === "number") return whole.minimum ?? (whole.exclusiveMinimum ?? 0) + 1;
  if (whole.type === "boolean") return true;
  return "text";
}

/** The error codes that an operation can answer with: [{ code, status, meaning }]. */
export function codes(operation) {
  return Object.entries(operation.responses).flatMap(([status, response]) =>
    [...(response.description ?? "").matchAll(/`(\w+)`: (.*?)(?= `\w+`: |$)/g)].map(([, code, meaning]) => ({
      code,
      status: Number(status),
      meaning,
    })),
  );
}

function kind(document, arm) {
  if (arm.type === "array")
    return `${
      arms(document, arm.items ?? {})
        .map((each) => kind(document, each))
        .join(" | ") || "any"
    }[]`;
  return arm.type ?? (arm.properties ? "object" : "any");
}

function lengths(found) {
  return found.flatMap((arm) =>
    [
      arm.minLength || arm.maxLength ? [arm.minLength, arm.maxLength, "characters"] : null,
      arm.minItems || arm.maxItems ? [arm.minItems, arm.maxItems, "entries"] : null,
    ].filter(Boolean),
  );
}

const bounds = (least, most) => (most === undefined ? `≥ ${least}` : least ? `${least} – ${most}` : `≤ ${most}`);

function short(number) {
  const exact = Math.log2(Math.abs(number) + (number > 0 ? 1 : 0));
  return Math.abs(number) >= 2 ** 31 - 1 && Number.isInteger(Math.round(exact)) && Math.abs(exact - Math.round(exact)) < 1e-6
    ? `${number < 0 ? "−" : ""}2^${Math.round(exact)}${number > 0 ? " − 1" : ""}`
    : String(number).replace("-", "−");
}
