// The wire to the server: one way to ask, one way to follow a stream, one kind of failure.

import { headers } from "./key.js";

/** Whatever went wrong. `code` is one of /errors, or "unreachable" or "broken"; `status` is 0 where nothing answered. */
export class Failure extends Error {
  constructor(told, status = 0) {
    super(told.message ?? "");
    this.name = "Failure";
    this.status = status;
    for (const part of ["code", "param", "path", "allowed", "corrected", "doc_url", "request_id", "hint"]) {
      this[part] = told[part] ?? null;
    }
  }
}

const watchers = new Set();

/** Call `listener` with every failure and every success ("well"); returns a function that ends it. */
export function watch(listener) {
  watchers.add(listener);
  return () => watchers.delete(listener);
}

/** Ask, and return the parsed answer (text, when it is no JSON); throws Failure. AbortError passes through. */
export async function call(path, { method, body, signal, accept, headers: more } = {}) {
  const response = await ask(path, { method, body, signal, accept, more });
  const text = await gone(response.text());
  return (response.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text;
}

/**
 * Follow server-sent events: yields { name, id, data } with data parsed where it is JSON. With `until`, that data ends the
 * stream and an end without it is a failure ("broken"), as in completions with "[DONE]".
 */
export async function* events(path, { method, body, signal, until } = {}) {
  const response = await ask(path, { method, body, signal, accept: "text/event-stream" });
  let rest = "";
  for await (const text of pieces(response.body)) {
    const frames = (rest + text).split("\n\n");
    rest = frames.pop();
    for (const frame of frames.map(parse).filter(Boolean)) {
      if (until !== undefined && frame.data === until) return;
      if (frame.data?.error?.code) throw told(new Failure(frame.data.error, 200));
      yield frame;
    }
  }
  if (until !== undefined) throw told(new Failure({ code: "broken", message: "the stream ended early" }));
}

/** Ask and return the response as it came, whatever its status: for those who show it (the request editor). */
export async function raw(path, { method = "GET", text, signal, headers: more } = {}) {
  const sent = { ...headers(), ...(text === undefined ? {} : { "content-type": "application/json" }), ...more };
  return gone(fetch(path, { method, body: text, signal, headers: sent }));
}

async function ask(path, { method, body, signal, accept, more }) {
  const response = await gone(
    fetch(path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: {
        ...headers(),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(accept ? { accept } : {}),
        ...more,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    }),
  );
  if (!response.ok) throw told(new Failure(await envelope(response), response.status));
  for (const each of watchers) each("well");
  return response;
}

/** The server's own account of a refusal; what comes from elsewhere (a proxy) has none. */
async function envelope(response) {
  try {
    const { error } = await response.json();
    if (error?.message) return error;
  } catch {
    /* no JSON: the status has to do */
  }
  return { code: response.status >= 500 ? "internal" : "not_found", message: `${response.status} ${response.statusText}` };
}

/** Turn a broken connection, which fetch tells as a TypeError, into a Failure. */
async function gone(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof TypeError) throw told(new Failure({ code: "unreachable", message: String(error.message) }));
    throw error;
  }
}

/** What to throw when a module of the page could not be fetched; mistakes inside one stay what they are. */
export function lost(error) {
  if (!(error instanceof TypeError) || !/import|module/i.test(error.message)) return error;
  return told(Object.assign(new Failure({ code: "unreachable", message: error.message }), { module: true }));
}

function told(failure) {
  for (const each of watchers) each(failure);
  return failure;
}

function parse(frame) {
  const found = { name: "message", id: null, data: [] };
  for (const line of frame.split("\n")) {
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line.replace(/\r$/, ""));
    if (name === "data") found.data.push(value);
    if (name === "event") found.name = value;
    if (name === "id") found.id = value;
  }
  if (!found.data.length) return null;
  const text = found.data.join("\n");
  try {
    return { ...found, data: JSON.parse(text) };
  } catch {
    return { ...found, data: text };
  }
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await gone(reader.read()); !part.done; part = await gone(reader.read())) yield part.value;
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
