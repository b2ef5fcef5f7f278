"""The engine: one step computes the next token of every decoding sequence, and chunks of prompts.

    add -> waiting -> admitted -> prefill in chunks -> decode a token (or an accepted draft) a step -> finish

Legend: T tokens of a step, D width, B rows of scores, V vocabulary.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windlass.serve.engine import embed, sequence, speculative
from windlass.serve.engine.block_manager import BlockManager, Policy
from windlass.serve.engine.embed import EmbeddingTask
from windlass.serve.engine.grammar.token_mask import GrammarRefused, Grammars, Matcher
from windlass.serve.engine.runner import Causal, Computed, Runner, Span
from windlass.serve.engine.sampler import SamplingRow, draw, score
from windlass.serve.engine.scheduler import Scheduler, decide_budget, decide_chunks
from windlass.serve.engine.sequence import Owner, Sequence
from windlass.spec.errors import did_you_mean
from windlass.spec.protocol.wire import (
    Alternative,
    Embed,
    EmbeddingVectors,
    EngineRequest,
    Failed,
    Generate,
    PromptScores,
    Tokens,
)

MAX_PROMPT_TOKENS = 512
MIN_PROMPT_TOKENS = 32
PAUSE_S = 0.05
"""Time that prompts may take of a step while other sequences decode."""
DRAFTED_SEQUENCES = 8
"""With more decoding sequences than this a step has many rows already, and no drafts are made."""

Answer = Tokens | PromptScores | EmbeddingVectors | Failed
Reply = tuple[Owner, Answer]


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine; none of them changes an answer."""

    slots: int = 32
    prompt_tokens: int = MAX_PROMPT_TOKENS
    shares_prefixes: bool = True
    max_idle_blocks: int | None = None
    policy: Policy = "lru"
    drafts: bool = True


@dataclass(slots=True)
class SequencePart:
    """The tokens that a step computes for one sequence: `length` of its known tokens, then its draft."""

    seq: Sequence
    span: Span
    length: int


@dataclass(slots=True)
class PromptSpeed:
    """Seconds per prompt token, a moving average over the steps so far."""

    seconds_per_token: float = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        if tokens >= MIN_PROMPT_TOKENS:
            rate = seconds / tokens
            known = self.seconds_per_token or rate
            self.seconds_per_token = known + 0.3 * (rate - known)


class Engine:
    """Continuous batching over one model. Not thread-safe."""

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings | None = None,
        *,
        adapters: Mapping[str, int] | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.runner, self.settings = runner, settings or EngineSettings()
        self.steps = self.tokens = 0
        self._adapters, self._grammars = dict(adapters or {}), grammars
        blocks = BlockManager(
            runner.blocks,
            max_idle=self.settings.max_idle_blocks,
            policy=self.settings.policy,
            shares=self.settings.shares_prefixes,
        )
        self._scheduler = Scheduler(blocks, slots=self.settings.slots, context=runner.shape.context)
        self._embeddings: dict[Sequence, EmbeddingTask] = {}
        self._replies: list[Reply] = []
        self._arrivals = itertools.count()
        self._pace = PromptSpeed()
        self._trigrams = speculative.Trigrams()
        self._costs = self._measure() if self.settings.drafts else None

    @property
    def shape(self) -> Causal:
        return self.runner.shape

    @property
    def precision(self) -> str:
        return self.runner.precision

    @property
    def adapters(self) -> list[str]:
        return list(self._adapters)

    @property
    def running_count(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting_count(self) -> int:
        return self._scheduler.waiting_count

    @property
    def blocks_used(self) -> int:
        return self._scheduler.blocks.used

    @property
    def blocks_idle(self) -> int:
        return self._scheduler.blocks.idle

    @property
    def blocks_in_all(self) -> int:
        return self._scheduler.blocks.count

    @property
    def is_idle(self) -> bool:
        return not (self.running_count or self.waiting_count or self._replies)

    def add(self, owner: Owner, message: EngineRequest) -> None:
        """Accept a message; its replies come out of the following steps."""
        match message:
            case Generate():
                self._add_generate(owner, message)
            case Embed():
                self._add_embed(owner, message)
            case _:
                self._cancel(owner, message.id, reply=True)

    def forget(self, owner: Owner) -> None:
        """Drop all requests of an owner that has disconnected."""
        self._replies = [reply for reply in self._replies if reply[0] != owner]
        for id_ in {seq.request.id for seq in self._scheduler if seq.owner == owner}:
            self._cancel(owner, id_, reply=False)

    def rest(self) -> None:
        """Called when the engine is idle; cached prefixes stay for the next requests."""

    def check(self) -> None:
        """Raise AssertionError if a block is lost or held twice."""
        self._scheduler.check()

    def step(self) -> list[Reply]:
        """Schedule, run, sample; return the replies of this step."""
        parts = self._schedule()
        if parts:
            computed = self._run(parts)
            self._sample(parts, computed)
            self.steps += 1
        elif self.waiting_count:
            time.sleep(0.001)  # every waiting request waits for a grammar, which another process compiles
        replies, self._replies = self._replies, []
        return replies

    def _schedule(self) -> list[SequencePart]:
        self._take_grammars()
        self._scheduler.admit()
        decoding = sorted(
            (seq for seq in self._scheduler.running if seq.is_decoding), key=lambda seq: seq.arrival
        )
        self._guess(decoding)
        parts = [
            self._part(seq, 1)
            for seq in decoding
            if seq.slot >= 0 and self._scheduler.reserve(seq, 1 + len(seq.draft))
        ]
        parts = [
            part for part in parts if part.seq.slot >= 0
        ]  # reserving for a later sequence may have preempted an earlier one
        reading = [seq for seq in self._scheduler.running if not seq.is_decoding]
        for seq in reading:
            seq.began_at = seq.began_at or time.monotonic()
        budget = decide_budget(
            self.settings.prompt_tokens, MIN_PROMPT_TOKENS,
            decoding=len(parts), seconds_per_token=self._pace.seconds_per_token, pause_s=PAUSE_S,
        )  # fmt: skip
        chunks = decide_chunks([seq.remaining for seq in reading], budget)
        return parts + [
            self._part(seq, length) for seq, length in zip(reading, chunks, strict=True) if length
        ]

    def _part(self, seq: Sequence, length: int) -> SequencePart:
        tokens = seq.tokens[seq.cached : seq.cached + length] + seq.draft
        ends = seq.cached + length == len(seq.tokens) and seq.sum_D is None
        outs = 1 + len(seq.draft) if ends else 0
        if seq.wants_scores:
            outs = length
        return SequencePart(seq, Span(seq.slot, seq.cached, tokens, outs, seq.adapter), length)

    def _run(self, parts: list[SequencePart]) -> Computed:
        """Compute the tokens of a step, and record that their keys and values are in blocks."""
        began = time.perf_counter()
        wants_states = any(part.seq.sum_D is not None for part in parts)
        computed = self.runner.run([part.span for part in parts], self._scheduler.tables, hidden=wants_states)
        self._pace.learn(time.perf_counter() - began, sum(len(part.span.tokens) for part in parts))
        for part in parts:
            self._scheduler.computed(part.seq, part.length)
        return computed

    def _sample(self, parts: list[SequencePart], computed: Computed) -> None:
        """Choose the next tokens of every sequence whose tokens are all computed."""
        rows: list[SamplingRow] = []
        places: list[int] = []
        ready: list[Sequence] = []
        end = row = 0
        for part in parts:
            seq, length = part.seq, part.length
            start, end = end, end + part.span.outs
            if seq.sum_D is not None and computed.hidden_TD is not None:
                self._sum(part, computed.hidden_TD[row : row + length])
            elif seq.wants_scores:
                self._score_prompt(part, computed.logits_BV[start:end])
            if part.span.outs and not seq.remaining:
                ready.append(seq)
                rows += self._rows(seq)
                places += range(end - 1 - len(seq.draft), end)
            row += len(part.span.tokens)
        if ready:
            self._choose(ready, rows, _picked(computed.logits_BV, places))

    def _rows(self, seq: Sequence) -> list[SamplingRow]:
        mask = None if seq.matcher is None else seq.matcher.mask()
        first = len(seq.tokens)
        return [SamplingRow(seq.request, first + i, seq.counts, mask) for i in range(1 + len(seq.draft))]

    def _choose(self, ready: list[Sequence], rows: list[SamplingRow], logits_BV: NDArray[np.float32]) -> None:
        drawn = draw(logits_BV, rows, self.runner.thread_pool)
        at = 0
        for seq in ready:
            guesses, seq.draft = seq.draft, []
            self._learn(seq, guesses, drawn.tokens[at])
            for place in range(at, at + 1 + len(guesses)):
                if not drawn.numeric[place]:
                    self._fail(seq)
                    break
                token = drawn.tokens[place]
                self._advance(seq, token, drawn.logprobs[place], drawn.alternatives[place])
                number = place - at
                if seq.slot < 0 or number == len(guesses) or guesses[number] != token:
                    break
                self._scheduler.computed(
                    seq, 1
                )  # the draft token was right, so its keys and values are valid
            at += 1 + len(guesses)

    def _advance(self, seq: Sequence, token: int, logprob: float, alternatives: list[Alternative]) -> None:
        message = seq.advance(token, logprob, alternatives)
        self.tokens += len(message.tokens)
        if message.finish is None:
            self._replies.append((seq.owner, message))
        else:
            self._end(seq, message)

    def _guess(self, decoding: list[Sequence]) -> None:
        """Draft tokens for the decoding sequences, if that is expected to be faster."""
        if self._costs is None or len(decoding) > DRAFTED_SEQUENCES:
            return
        for seq in decoding:
            seq.draft = speculative.draft(seq, self._trigrams)
        known = [(len(seq.draft), seq.acceptance) for seq in decoding if seq.draft]
        if not speculative.decide(self._costs, len(decoding), known):
            for seq in decoding:
                seq.skipped_draft, seq.draft = (seq.draft[0] if seq.draft else -1), []

    def _learn(self, seq: Sequence, guesses: list[int], token: int) -> None:
        first = guesses[0] if guesses else seq.skipped_draft
        if first >= 0:
            speculative.learn(seq, first, token)
        seq.skipped_draft = -1

    def _measure(self) -> speculative.StepCosts:
        """Time steps of 1, 2, 4... rows. Called at the start, while all blocks are free."""
        scheduler, max_rows = self._scheduler, DRAFTED_SEQUENCES * (1 + speculative.LONGEST)

        def run(rows: int) -> None:
            some = min(rows, self.runner.shape.context)
            self.runner.run([Span(0, 0, [0] * some, outs=some)], scheduler.tables)

        return speculative.StepCosts.measured(run, max_rows)

    def _sum(self, part: SequencePart, hidden_TD: NDArray[np.float32]) -> None:
        """Add the hidden states of a chunk to the sum of an embedding sequence."""
        seq = part.seq
        before_D = 0.0 if part.span.position == 0 else seq.sum_D
        seq.sum_D = before_D + hidden_TD.sum(axis=0, dtype=np.float64)
        if seq.remaining:
            return
        self._scheduler.remove(seq)
        whole = self._embeddings.pop(seq)
        whole.done += 1
        if whole.is_done:
            self._replies.append((whole.owner, embed.answer(whole.request.id, whole.vectors())))

    def _score_prompt(self, part: SequencePart, logits_BV: NDArray[np.float32]) -> None:
        """Score the prompt tokens after those of a chunk; reply with all scores at the end of the prompt."""
        seq, start = part.seq, part.span.position
        if start == 0:  # also when it was preempted half-way and starts again
            seq.prompt_logprobs, seq.prompt_alternatives = [], []
        following = seq.request.tokens[start + 1 : start + 1 + part.length]
        if following:
            logprobs, alternatives = score(
                logits_BV[: len(following)], following, max(0, seq.request.logprobs)
            )
            seq.prompt_logprobs += logprobs
            seq.prompt_alternatives += alternatives if seq.request.logprobs > 0 else []
        if not seq.remaining:
            seq.scored = True
            scores = PromptScores(seq.request.id, seq.prompt_logprobs, seq.prompt_alternatives)
            self._replies.append((seq.owner, scores))

    def _add_generate(self, owner: Owner, request: Generate) -> None:
        wrong = self._refusal(owner, request)
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        adapter = self._adapters[request.adapter] if request.adapter else -1
        seq = sequence.begin(owner, request, next(self._arrivals), adapter)
        seq.arrived_at = time.monotonic()
        if request.grammar is not None:
            assert self._grammars is not None
            seq.pending = self._grammars.request(request.grammar, tried=request.grammar_tried)
        self._scheduler.add(seq)

    def _refusal(self, owner: Owner, request: Generate) -> tuple[str, str] | None:
        if self._scheduler.has(owner, request.id):
            return "duplicate_id", f"request '{request.id}' is under way already"
        if request.adapter and request.adapter not in self._adapters:
            near = did_you_mean(request.adapter, list(self._adapters))
            return "unknown_adapter", f"adapter '{request.adapter}' is not served here; {near}"
        if request.grammar is not None and self._grammars is None:
            return (
                "bad_grammar",
                "this model has no tokenizer.json, which structured output needs",
            )
        return sequence.refusal(request, self.runner.shape.vocabulary, self.runner.shape.context)

    def _add_embed(self, owner: Owner, request: Embed) -> None:
        shape = self.runner.shape
        wrong = embed.refusal(request, shape.vocabulary, shape.context)
        if not shape.width:
            wrong = (
                "not_embeddable",
                f"an {shape.family} model has no embeddings, neither of tokens nor of texts",
            )
        if self._scheduler.has(owner, request.id):
            wrong = "duplicate_id", f"request '{request.id}' is under way already"
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        whole = EmbeddingTask(owner, request)
        for tokens in request.inputs:
            generate = Generate(request.id, tokens, 0, tenant=request.tenant, priority=request.priority)
            seq = sequence.begin(owner, generate, next(self._arrivals))
            seq.sum_D = np.zeros(shape.width)
            whole.parts.append(seq)
            self._embeddings[seq] = whole
            self._scheduler.add(seq)

    def _take_grammars(self) -> None:
        """Give compiled grammars to the sequences waiting for them; fail those whose grammar was refused."""
        for seq in [seq for seq in self._scheduler if seq.pending is not None]:
            assert seq.pending is not None
            found = seq.pending.poll()
            if isinstance(found, GrammarRefused):
                self._end(seq, Failed(seq.request.id, "bad_grammar", found.reason))
            elif isinstance(found, Matcher):
                seq.pending, seq.matcher = None, found
                found.resume(seq.request.tokens[len(seq.request.tokens) - seq.request.resumed_tokens :])

    def _cancel(self, owner: Owner, id_: str, *, reply: bool) -> None:
        found = [seq for seq in self._scheduler if seq.owner == owner and seq.request.id == id_]
        for seq in found:
            self._scheduler.remove(seq)
            self._embeddings.pop(seq, None)
        if found and reply:
            self._replies.append((owner, Tokens(id_, finish="cancelled")))

    def _fail(self, seq: Sequence) -> None:
        failure = None if seq.matcher is None else seq.matcher.failure
        if failure is not None:
            self._end(seq, Failed(seq.request.id, "bad_grammar", failure))
            return
        reason = "the scores of this model are not numbers; its weights are damaged"
        self._end(seq, Failed(seq.request.id, "not_a_number", reason))

    def _end(self, seq: Sequence, last: Tokens | Failed) -> None:
        self._replies.append((seq.owner, last))
        if self._costs is not None:
            self._trigrams.learn(seq.request.tenant, seq.tokens[len(seq.request.tokens) :])
        self._scheduler.remove(seq)


def _picked(logits_BV: NDArray[np.float32], places: list[int]) -> NDArray[np.float32]:
    """Return the rows at `places`, without a copy if these are all rows."""
    return logits_BV if len(places) == len(logits_BV) else logits_BV[places]
