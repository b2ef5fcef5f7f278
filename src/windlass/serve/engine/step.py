"""The engine: one step computes the next token of every sequence that decodes, and a piece of the prompts.

    add -> waiting -> admitted -> prompt read in chunks -> a token (or a draft's worth) a step -> finish

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
"""Prompts take no longer than this of a step while others decode."""
DRAFTED_SEQUENCES = 8
"""With more sequences than this the rows of a step are many already, and guessing is not even tried."""

Answer = Tokens | PromptScores | EmbeddingVectors | Failed
Reply = tuple[Owner, Answer]


@dataclass(frozen=True)
class EngineSettings:
    """How an engine behaves; none of it changes an answer."""

    slots: int = 32
    prompt_tokens: int = MAX_PROMPT_TOKENS
    shares_prefixes: bool = True
    max_idle_blocks: int | None = None
    policy: Policy = "lru"
    drafts: bool = True


@dataclass(slots=True)
class SequencePart:
    """What a step computes of one sequence: `length` of its known tokens, then its draft."""

    one: Sequence
    span: Span
    length: int


@dataclass(slots=True)
class PromptSpeed:
    """How long a prompt token takes, by the steps so far."""

    seconds_per_token: float = 0.0

    def learn(self, seconds: float, tokens: int) -> None:
        if tokens >= MIN_PROMPT_TOKENS:
            rate = seconds / tokens
            known = self.seconds_per_token or rate
            self.seconds_per_token = known + 0.3 * (rate - known)


class Engine:
    """Continuous batching over one model. Not for use by several threads."""

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
        self._roster = Scheduler(blocks, slots=self.settings.slots, context=runner.shape.context)
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
        return len(self._roster.running)

    @property
    def waiting_count(self) -> int:
        return self._roster.waiting_count

    @property
    def blocks_used(self) -> int:
        return self._roster.blocks.used

    @property
    def blocks_idle(self) -> int:
        return self._roster.blocks.idle

    @property
    def blocks_in_all(self) -> int:
        return self._roster.blocks.count

    @property
    def is_idle(self) -> bool:
        return not (self.running_count or self.waiting_count or self._replies)

    def add(self, owner: Owner, message: EngineRequest) -> None:
        """Take a message; what it leads to comes out of the next steps."""
        match message:
            case Generate():
                self._add_generate(owner, message)
            case Embed():
                self._add_embed(owner, message)
            case _:
                self._cancel(owner, message.id, tell=True)

    def forget(self, owner: Owner) -> None:
        """Drop all requests of an owner that is gone."""
        self._replies = [reply for reply in self._replies if reply[0] != owner]
        for id_ in {one.request.id for one in self._roster if one.owner == owner}:
            self._cancel(owner, id_, tell=False)

    def rest(self) -> None:
        """For when nothing runs and nothing is expected soon; what is cached stays for who comes next."""

    def check(self) -> None:
        """Raise AssertionError if a block is lost or held twice."""
        self._roster.check()

    def step(self) -> list[Reply]:
        """Schedule, run, sample; return what there is to say."""
        parts = self._schedule()
        if parts:
            computed = self._run(parts)
            self._sample(parts, computed)
            self.steps += 1
        elif self.waiting_count:
            time.sleep(0.001)  # all that wait do so for a grammar, which another process compiles
        replies, self._replies = self._replies, []
        return replies

    def _schedule(self) -> list[SequencePart]:
        self._take_grammars()
        self._roster.admit()
        decoding = sorted(
            (one for one in self._roster.running if one.is_decoding), key=lambda one: one.arrival
        )
        self._guess(decoding)
        parts = [
            self._part(one, 1)
            for one in decoding
            if one.slot >= 0 and self._roster.reserve(one, 1 + len(one.draft))
        ]
        parts = [part for part in parts if part.one.slot >= 0]  # one may have been set aside for a later one
        reading = [one for one in self._roster.running if not one.is_decoding]
        for one in reading:
            one.began_at = one.began_at or time.monotonic()
        budget = decide_budget(
            self.settings.prompt_tokens, MIN_PROMPT_TOKENS,
            decoding=len(parts), seconds_per_token=self._pace.seconds_per_token, pause_s=PAUSE_S,
        )  # fmt: skip
        chunks = decide_chunks([one.remaining for one in reading], budget)
        return parts + [
            self._part(one, length) for one, length in zip(reading, chunks, strict=True) if length
        ]

    def _part(self, one: Sequence, length: int) -> SequencePart:
        tokens = one.tokens[one.cached : one.cached + length] + one.draft
        ends = one.cached + length == len(one.tokens) and one.sum_D is None
        outs = 1 + len(one.draft) if ends else 0
        if one.wants_scores:
            outs = length
        return SequencePart(one, Span(one.slot, one.cached, tokens, outs, one.adapter), length)

    def _run(self, parts: list[SequencePart]) -> Computed:
        """Compute the tokens of a step, and note what is in blocks now."""
        began = time.perf_counter()
        wants_states = any(part.one.sum_D is not None for part in parts)
        computed = self.runner.run([part.span for part in parts], self._roster.tables, hidden=wants_states)
        self._pace.learn(time.perf_counter() - began, sum(len(part.span.tokens) for part in parts))
        for part in parts:
            self._roster.computed(part.one, part.length)
        return computed

    def _sample(self, parts: list[SequencePart], computed: Computed) -> None:
        """Choose the next tokens of every sequence whose tokens are all computed."""
        rows: list[SamplingRow] = []
        places: list[int] = []
        ready: list[Sequence] = []
        end = row = 0
        for part in parts:
            one, length = part.one, part.length
            start, end = end, end + part.span.outs
            if one.sum_D is not None and computed.hidden_TD is not None:
                self._sum(part, computed.hidden_TD[row : row + length])
            elif one.wants_scores:
                self._score_prompt(part, computed.logits_BV[start:end])
            if part.span.outs and not one.remaining:
                ready.append(one)
                rows += self._rows(one)
                places += range(end - 1 - len(one.draft), end)
            row += len(part.span.tokens)
        if ready:
            self._choose(ready, rows, _picked(computed.logits_BV, places))

    def _rows(self, one: Sequence) -> list[SamplingRow]:
        mask = None if one.matcher is None else one.matcher.mask()
        first = len(one.tokens)
        return [SamplingRow(one.request, first + i, one.counts, mask) for i in range(1 + len(one.draft))]

    def _choose(self, ready: list[Sequence], rows: list[SamplingRow], logits_BV: NDArray[np.float32]) -> None:
        drawn = draw(logits_BV, rows, self.runner.team)
        at = 0
        for one in ready:
            guesses, one.draft = one.draft, []
            self._learn(one, guesses, drawn.tokens[at])
            for place in range(at, at + 1 + len(guesses)):
                if not drawn.numeric[place]:
                    self._fail(one)
                    break
                token = drawn.tokens[place]
                self._advance(one, token, drawn.logprobs[place], drawn.alternatives[place])
                number = place - at
                if one.slot < 0 or number == len(guesses) or guesses[number] != token:
                    break
                self._roster.computed(one, 1)  # the guess was right, and so is what was computed for it
            at += 1 + len(guesses)

    def _advance(self, one: Sequence, token: int, logprob: float, alternatives: list[Alternative]) -> None:
        message = one.advance(token, logprob, alternatives)
        self.tokens += len(message.tokens)
        if message.finish is None:
            self._replies.append((one.owner, message))
        else:
            self._end(one, message)

    def _guess(self, decoding: list[Sequence]) -> None:
        """Give drafts to those who decode, where that is expected to be quicker."""
        if self._costs is None or len(decoding) > DRAFTED_SEQUENCES:
            return
        for one in decoding:
            one.draft = speculative.draft(one, self._trigrams)
        known = [(len(one.draft), one.lucky) for one in decoding if one.draft]
        if not speculative.decide(self._costs, len(decoding), known):
            for one in decoding:
                one.hoped, one.draft = (one.draft[0] if one.draft else -1), []

    def _learn(self, one: Sequence, guesses: list[int], token: int) -> None:
        first = guesses[0] if guesses else one.hoped
        if first >= 0:
            speculative.learn(one, first, token)
        one.hoped = -1

    def _measure(self) -> speculative.StepCosts:
        """Time steps of few and of more rows, in blocks that are free at the start."""
        roster, most = self._roster, DRAFTED_SEQUENCES * (1 + speculative.LONGEST)

        def run(rows: int) -> None:
            some = min(rows, self.runner.shape.context)
            self.runner.run([Span(0, 0, [0] * some, outs=some)], roster.tables)

        return speculative.StepCosts.measured(run, most)

    def _sum(self, part: SequencePart, hidden_TD: NDArray[np.float32]) -> None:
        """Add up the states of a sequence that is to become a vector."""
        one = part.one
        before_D = 0.0 if part.span.position == 0 else one.sum_D
        one.sum_D = before_D + hidden_TD.sum(axis=0, dtype=np.float64)
        if one.remaining:
            return
        self._roster.remove(one)
        whole = self._embeddings.pop(one)
        whole.done += 1
        if whole.is_done:
            self._replies.append((whole.owner, embed.answer(whole.request.id, whole.vectors())))

    def _score_prompt(self, part: SequencePart, logits_BV: NDArray[np.float32]) -> None:
        """Score the prompt tokens that follow those of a chunk; tell them when the prompt is read."""
        one, start = part.one, part.span.position
        if start == 0:  # also when it was set aside half-way and begins again
            one.prompt_logprobs, one.prompt_alternatives = [], []
        following = one.request.tokens[start + 1 : start + 1 + part.length]
        if following:
            logprobs, alternatives = score(
                logits_BV[: len(following)], following, max(0, one.request.logprobs)
            )
            one.prompt_logprobs += logprobs
            one.prompt_alternatives += alternatives if one.request.logprobs > 0 else []
        if not one.remaining:
            one.scored = True
            scores = PromptScores(one.request.id, one.prompt_logprobs, one.prompt_alternatives)
            self._replies.append((one.owner, scores))

    def _add_generate(self, owner: Owner, request: Generate) -> None:
        wrong = self._refusal(owner, request)
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        adapter = self._adapters[request.adapter] if request.adapter else -1
        one = sequence.begin(owner, request, next(self._arrivals), adapter)
        one.arrived_at = time.monotonic()
        if request.grammar is not None:
            assert self._grammars is not None
            one.pending = self._grammars.request(request.grammar, tried=request.grammar_tried)
        self._roster.add(one)

    def _refusal(self, owner: Owner, request: Generate) -> tuple[str, str] | None:
        if self._roster.has(owner, request.id):
            return "duplicate_id", f"request '{request.id}' is under way already"
        if request.adapter and request.adapter not in self._adapters:
            near = did_you_mean(request.adapter, list(self._adapters))
            return "unknown_adapter", f"adapter '{request.adapter}' is not served here; {near}"
        if request.grammar is not None and self._grammars is None:
            return (
                "bad_grammar",
                "this model has no tokenizer beside it, so its answers cannot be given a form",
            )
        return sequence.refusal(request, self.runner.shape.vocabulary, self.runner.shape.context)

    def _add_embed(self, owner: Owner, request: Embed) -> None:
        shape = self.runner.shape
        wrong = embed.refusal(request, shape.vocabulary, shape.context)
        if not shape.width:
            wrong = (
                "not_embeddable",
                f"an {shape.family} model has no vectors, neither of tokens nor of texts",
            )
        if self._roster.has(owner, request.id):
            wrong = "duplicate_id", f"request '{request.id}' is under way already"
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        whole = EmbeddingTask(owner, request)
        for tokens in request.inputs:
            asked = Generate(request.id, tokens, 0, tenant=request.tenant, priority=request.priority)
            one = sequence.begin(owner, asked, next(self._arrivals))
            one.sum_D = np.zeros(shape.width)
            whole.parts.append(one)
            self._embeddings[one] = whole
            self._roster.add(one)

    def _take_grammars(self) -> None:
        """Let those go on whose grammar is compiled, or cannot be."""
        for one in [one for one in self._roster if one.pending is not None]:
            assert one.pending is not None
            found = one.pending.poll()
            if isinstance(found, GrammarRefused):
                self._end(one, Failed(one.request.id, "bad_grammar", found.reason))
            elif isinstance(found, Matcher):
                one.pending, one.matcher = None, found
                found.resume(one.request.tokens[len(one.request.tokens) - one.request.resumed_tokens :])

    def _cancel(self, owner: Owner, id_: str, *, tell: bool) -> None:
        found = [one for one in self._roster if one.owner == owner and one.request.id == id_]
        for one in found:
            self._roster.remove(one)
            self._embeddings.pop(one, None)
        if found and tell:
            self._replies.append((owner, Tokens(id_, finish="cancelled")))

    def _fail(self, one: Sequence) -> None:
        failure = None if one.matcher is None else one.matcher.failure
        if failure is not None:
            self._end(one, Failed(one.request.id, "bad_grammar", failure))
            return
        reason = "the scores of this model are not numbers; its weights are damaged"
        self._end(one, Failed(one.request.id, "not_a_number", reason))

    def _end(self, one: Sequence, last: Tokens | Failed) -> None:
        self._replies.append((one.owner, last))
        if self._costs is not None:
            self._trigrams.learn(one.request.tenant, one.tokens[len(one.request.tokens) :])
        self._roster.remove(one)


def _picked(logits_BV: NDArray[np.float32], places: list[int]) -> NDArray[np.float32]:
    """Return some rows, without a copy where all are meant."""
    return logits_BV if len(places) == len(logits_BV) else logits_BV[places]
