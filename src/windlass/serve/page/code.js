// A request as code that runs as it stands: curl, Python, JavaScript, Java. The key is never written out.

import { copyButton, h, tabs } from "./dom.js";

const LANGUAGES = [
  ["python", "Python"],
  ["curl", "curl"],
  ["javascript", "JavaScript"],
  ["java", "Java"],
];
const SDK_SETTINGS = new Set([
  "max_tokens",
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "logit_bias",
  "n",
  "seed",
  "stop",
  "response_format",
  "guided_json",
  "guided_regex",
  "guided_choice",
  "logprobs",
  "priority",
  "user",
]);
const PLACE = "windlass-code";

/** { method, path, body } -> { curl, python, javascript, java }. */
export function snippets(request) {
  return { curl: curl(request), python: python(request), javascript: javascript(request), java: java(request) };
}

/** Tabs with the four, each with a button to copy it; `request` is a function, so the code can follow what is typed. */
export function codeTabs(request, { t, announce }) {
  let name = sessionStorage.getItem(PLACE) ?? "python";
  const text = h("code", {});
  const box = h(
    "div",
    { class: "code" },
    h("pre", { tabindex: "0", "aria-label": t("code") }, text),
    copyButton(() => text.textContent, t, announce),
  );
  const refresh = () => {
    text.textContent = snippets(request())[name];
  };
  const whole = tabs(
    t("code"),
    LANGUAGES.map(([each, title]) => [each, title, () => box]),
    {
      first: name,
      chosen: (each) => {
        name = each;
        sessionStorage.setItem(PLACE, each);
        refresh();
      },
    },
  );
  whole.refresh = refresh;
  return whole;
}

const origin = () => location.origin;
const keyed = () => document.querySelector('meta[name="windlass-keys"]').content === "on";

function curl({ method, path, body }) {
  const parts = [
    `curl ${body?.stream ? "-N " : ""}${method === "GET" || (method === "POST" && body) ? "" : `-X ${method} `}${shellWord(origin() + path)}`,
  ];
  if (keyed()) parts.push(`-H "Authorization: Bearer $WINDLASS_KEY"`);
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${shellWord(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
}

function python(request) {
  return viaSdk(request) ?? viaStandardLibrary(request);
}

/** Completions, chats and embeddings by windlass.sdk, where it has every setting that was used. */
function viaSdk({ method, path, body }) {
  if (method !== "POST" || !body || !["/v1/completions", "/v1/chat/completions", "/v1/embeddings"].includes(path)) return null;
  const { model, prompt, messages, input, stream, stream_options: _, ...rest } = body;
  const settings = sdkSettings(rest),
    asked = prompt ?? messages ?? input;
  if (
    asked === undefined ||
    Object.keys(settings).some((name) => !SDK_SETTINGS.has(name)) ||
    (input && Object.keys(settings).length)
  )
    return null;
  const streams = stream && settings.logprobs === undefined && (settings.n ?? 1) === 1;
  const call = input
    ? "embed"
    : `${streams ? "stream" : ""}${messages ? (streams ? "_chat" : "chat") : streams ? "" : "complete"}`;
  const open = `from windlass.sdk import Client

with Client(${pythonValue(origin())}, model=${pythonValue(model)}) as client:${keyed() ? "  # the key is read from $WINDLASS_KEY" : ""}
`;
  const parts = (by) => [
    pythonValue(asked, by),
    ...Object.entries(settings).map(([name, value]) => `${name}=${pythonValue(value, by)}`),
  ];
  const line = parts(0).join(", ");
  const made =
    line.length < 60
      ? `client.${call}(${line})`
      : `client.${call}(\n${parts(8)
          .map((each) => `        ${each},\n`)
          .join("")}    )`;
  if (input) return `${open}    print(${made})\n`;
  if (streams) return `${open}    for piece in ${made}:\n        print(piece, end="", flush=True)\n`;
  return `${open}    answer = ${made}\n    print(answer.text)${settings.logprobs === undefined ? "" : "\n    print(answer.choices[0].scores)"}\n`;
}

/** Our SDK has one name for each thing, for completions and chats alike. */
function sdkSettings({ max_completion_tokens: most, top_logprobs: rivals, ...rest }) {
  const settings = { ...rest };
  if (most !== undefined) settings.max_tokens = most;
  if (rest.logprobs === true) settings.logprobs = rivals ?? 0;
  return settings;
}

function viaStandardLibrary({ method, path, body }) {
  const head = [
    ...(keyed() ? [`    "Authorization": f"Bearer {os.environ['WINDLASS_KEY']}",`] : []),
    ...(body === undefined ? [] : ['    "Content-Type": "application/json",']),
  ];
  const imports = ["import json", ...(keyed() ? ["import os"] : []), "import urllib.request"];
  const streams = Boolean(body?.stream);
  return `${imports.filter((each) => each !== "import json" || body !== undefined).join("\n")}

request = urllib.request.Request(
    ${pythonValue(origin() + path)},
    method=${pythonValue(method)},
    headers={
${head.map((line) => `    ${line}`).join("\n")}
    },${
      body === undefined
        ? ""
        : `
    data=json.dumps(
        ${pythonValue(body, 8)}
    ).encode(),`
    }
)
with urllib.request.urlopen(request) as response:
${
  streams
    ? `    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            print(json.loads(line[6:]))
`
    : `    print(response.read().decode())
`
}`.replace("    headers={\n\n    },\n", "");
}

function javascript({ method, path, body }) {
  const head = [
    ...(keyed() ? ["    authorization: `Bearer ${process.env.WINDLASS_KEY}`,"] : []),
    ...(body === undefined ? [] : ['    "content-type": "application/json",']),
  ];
  const options = [
    ...(method === "GET" ? [] : [`  method: ${JSON.stringify(method)},`]),
    ...(head.length ? ["  headers: {", ...head, "  },"] : []),
    ...(body === undefined ? [] : [`  body: JSON.stringify(${indent(JSON.stringify(body, null, 2), 2)}),`]),
  ];
  const asked = `const response = await fetch(${JSON.stringify(origin() + path)}${options.length ? `, {\n${options.join("\n")}\n}` : ""});\n`;
  if (!body?.stream) return `${asked}console.log(response.status, await response.text());\n`;
  const piece = path.includes("chat") ? "choice?.delta?.content" : "choice?.text";
  return `${asked}let rest = "";
for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
  const frames = (rest + text).split("\\n\\n");
  rest = frames.pop();
  for (const frame of frames) {
    if (!frame.startsWith("data: ") || frame === "data: [DONE]") continue;
    const choice = JSON.parse(frame.slice(6)).choices?.[0];
    process.stdout.write(${piece} ?? "");
  }
}
`;
}

function java({ method, path, body }) {
  const streams = Boolean(body?.stream);
  const publisher = body === undefined ? "HttpRequest.BodyPublishers.noBody()" : "HttpRequest.BodyPublishers.ofString(body)";
  const steps = [
    `HttpRequest.newBuilder(URI.create(${JSON.stringify(origin() + path)}))`,
    ...(keyed() ? ['.header("Authorization", "Bearer " + System.getenv("WINDLASS_KEY"))'] : []),
    ...(body === undefined ? [] : ['.header("Content-Type", "application/json")']),
    `.method(${JSON.stringify(method)}, ${publisher})`,
    ".build()",
  ];
  const text =
    body === undefined
      ? ""
      : `        var body = """
${indent(`            ${JSON.stringify(body, null, 2)}`, 12)
  .replaceAll("\\", "\\\\")
  .replaceAll('"""', '\\"""')}
            """;\n`;
  const send = streams
    ? "client.send(request, HttpResponse.BodyHandlers.ofLines()).body().forEach(System.out::println);"
    : "System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());";
  return `// java Ask.java
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

class Ask {
    public static void main(String[] arguments) throws Exception {
${text}        var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        var request = ${steps.join("\n            ")};
        ${send}
    }
}
`;
}

const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const indent = (text, by) => text.replaceAll("\n", `\n${" ".repeat(by)}`);

/** JSON as Python writes it. */
function pythonValue(value, by = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) {
    const inner = value.map((each) => pythonValue(each, by + 4));
    if (inner.join(", ").length < 80) return `[${inner.join(", ")}]`;
    return `[\n${inner.map((each) => `${" ".repeat(by + 4)}${each},\n`).join("")}${" ".repeat(by)}]`;
  }
  if (typeof value === "object") {
    const inner = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each, by + 4)}`);
    if (inner.join(", ").length < 80) return `{${inner.join(", ")}}`;
    return `{\n${inner.map((each) => `${" ".repeat(by + 4)}${each},\n`).join("")}${" ".repeat(by)}}`;
  }
  return JSON.stringify(value);
}
