// Server-sent events over fetch: the answer of the API, piece by piece.

import { headers } from "./key.js";

/** An error that the API told; `code` is one of /errors. */
export class Refusal extends Error {
  constructor({ code, message }) {
    super(message);
    this.code = code;
  }
}

/** POST a request and yield the JSON of every event; ends at [DONE], throws Refusal on an error. */
export async function* events(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Refusal((await response.json()).error);
  let rest = "";
  for await (const text of pieces(response.body)) {
    const frames = (rest + text).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data === undefined) continue;
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error) throw new Refusal(value.error);
      yield value;
    }
  }
  throw new Refusal({ code: "broken", message: "the stream ended early" });
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
