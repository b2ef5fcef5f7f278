// A run's journal as the view draws it. Input: records in the order of the journal. Output: a story, to which records are added.

/** Records that may change the state of a run, its goodput or its incidents. */
export const NEWS = new Set(["started", "resumed", "settled", "evaluation", "checkpoint_failed", "verified", "settings",
  "paused", "unpaused", "stopped", "finished", "restarted", "coordinator", "lost", "left", "generation",
  "waiting", "scaled", "over", "replanned"]);

export const begin = () => ({ count: 0, steps: [], evaluations: [], samples: [], changes: [], scaled: null, last: null });

/** Take one record in; `resumed` and `settled` undo the records of later steps. */
export function take(story, record) {
  story.count += 1;
  if (record.event === "step") story.steps.push((story.last = record));
  else if (record.event === "evaluation") story.evaluations.push(record);
  else if (record.event === "sample") story.samples.push(record);
  else if (record.event === "settings") story.changes.push(record);
  else if (record.event === "scaled") story.scaled = record;
  else if (record.event === "resumed" || record.event === "settled") undo(story, record.step);
}

function undo(story, step) {
  for (const part of ["steps", "evaluations", "samples"]) {
    let keep = story[part].length;
    while (keep && story[part][keep - 1].step > step) keep -= 1;
    story[part].length = keep;
  }
  story.last = story.steps.at(-1) ?? null;
}

/** Follow the journal until the run has ended or `signal` says so; continues after the last record when the connection breaks. */
export async function follow(api, base, story, signal, onRecord) {
  while (!signal.aborted) {
    try {
      for await (const { name, data } of api.events(`${base}/journal?after=${story.count}`, { signal })) {
        if (name === "end") return onRecord(null);
        take(story, data);
        onRecord(data);
      }
    } catch (failure) {
      if (signal.aborted || failure.name === "AbortError") return;
      if (failure.name !== "Failure") throw failure;
      if (failure.status && failure.status < 500) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 1500));
  }
}

/** The speed of the last steps: the middle one, because a checkpoint or a neighbour slows single steps down. */
export function speedOf(story) {
  const last = story.steps.slice(-21).map((each) => each.tokens_per_s).filter((each) => each > 0).sort((a, b) => a - b);
  return last.length ? last[last.length >> 1] : null;
}
