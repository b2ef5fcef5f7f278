"""The engine: one step computes one token of every sequence that decodes, and a piece of the prompts.

    add -> waiting -> a slot is free -> prompt read in chunks -> a token a step -> finish

Legend: T packed tokens of a step, D width, B rows that are sampled, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from windlass.models.language import LanguageModel
from windlass.serve.engine import embed, sequence
from windlass.serve.engine.cache import Chunk, SlottedCache
from windlass.serve.engine.embed import Embedding
from windlass.serve.engine.sample import Settings, adjust, choose, report, settings_of, uniform, unreported
from windlass.serve.engine.schedule import Roster, decide_chunks
from windlass.serve.engine.sequence import Owner, Sequence
from windlass.spec.shape import BertShape
from windlass.spec.wire import Alternative, Embed, Failed, Generate, PromptScores, ToEngine, Tokens, Vectors

PROMPT_TOKENS_PER_STEP = 256
EMBED_TOKENS_PER_STEP = 2048

Answer = Tokens | PromptScores | Vectors | Failed
Reply = tuple[Owner, Answer]


@dataclass(frozen=True)
class Batch:
    """What a step computes: a token of each `decoding`, and of each of `reading` so many prompt tokens."""

    decoding: list[Sequence]
    reading: list[tuple[Sequence, int]]

    @property
    def is_empty(self) -> bool:
        return not self.decoding and not self.reading


class Engine:
    """Continuous batching over one model. Not for use by several threads."""

    def __init__(
        self, model: LanguageModel, *, slots: int, prompt_tokens_per_step: int = PROMPT_TOKENS_PER_STEP
    ) -> None:
        self.model = model.eval()
        self.slots = slots
        self.steps = self.tokens = 0
        self._budget = prompt_tokens_per_step
        self._device = model.output_weight.device
        self._waiting: deque[Sequence] = deque()
        self._embeddings: deque[Embedding] = deque()
        self._replies: list[Reply] = []
        self._settings: tuple[list[Sequence], Settings] | None = None
        if not isinstance(model.shape, BertShape):
            self._cache = SlottedCache(
                model.shape, slots=slots, device=self._device, dtype=model.output_weight.dtype
            )
            self._roster = Roster(self._cache)

    @property
    def running_count(self) -> int:
        return len(self._roster.running) if self.model.causal else 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting) + len(self._embeddings)

    @property
    def is_idle(self) -> bool:
        return not (self.running_count or self.waiting_count or self._replies)

    def add(self, owner: Owner, message: ToEngine) -> None:
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
        for id_ in {one.request.id for one in self._all() if one.owner == owner}:
            self._cancel(owner, id_, tell=False)

    def rest(self) -> None:
        """Give back the memory of past requests; for when nothing runs and nothing is expected soon."""
        if self.model.causal and not self._roster.running:
            self._cache.reset()

    @torch.inference_mode()
    def step(self) -> list[Reply]:
        """Schedule, run, sample; return what there is to say."""
        batch = self._schedule()
        if not batch.is_empty:
            x_TD = self._run(batch)
            self._sample(batch, x_TD)
            self.steps += 1
        if self._embeddings:
            self._step_embedding()
        replies, self._replies = self._replies, []
        return replies

    def _schedule(self) -> Batch:
        if not self.model.causal:
            return Batch([], [])
        while self._waiting and len(self._roster.running) < self.slots:
            self._roster.admit(self._waiting.popleft())
        reading = self._roster.reading
        chunks = decide_chunks([one.remaining for one in reading], self._budget)
        return Batch(
            self._roster.decoding,
            [(one, length) for one, length in zip(reading, chunks, strict=True) if length],
        )

    def _run(self, batch: Batch) -> Tensor:
        """Compute the packed tokens of the batch; return their final hidden states."""
        tokens = [one.tokens[-1] for one in batch.decoding]
        positions = [one.cached for one in batch.decoding]
        chunks = [Chunk(one.slot, one.cached, length) for one, length in batch.reading]
        self._cache.begin(positions, chunks)
        for (one, _), chunk in zip(batch.reading, chunks, strict=True):
            tokens += one.tokens[chunk.start : chunk.end]
            positions += range(chunk.start, chunk.end)
        x_1TD: Tensor = self.model(
            torch.tensor([tokens], device=self._device),
            positions_BT=torch.tensor([positions], device=self._device),
            cache=self._cache,
        )
        return x_1TD[0]

    def _sample(self, batch: Batch, x_TD: Tensor) -> None:
        """Choose the next token of every sequence whose tokens are all computed."""
        ready, rows = list(batch.decoding), list(range(len(batch.decoding)))
        for one in batch.decoding:
            one.cached += 1
        at = len(rows)
        for one, length in batch.reading:
            if one.request.score_prompt:
                self._score_prompt(one, x_TD[at : at + length])
            one.cached += length
            at += length
            if not one.remaining:
                ready.append(one)
                rows.append(at - 1)
        if ready:
            self._choose(ready, x_TD[rows], already_decoding=len(batch.decoding))

    def _choose(self, ready: list[Sequence], x_BD: Tensor, *, already_decoding: int) -> None:
        logits_BV = self.model.logits(x_BD)
        numbers = [uniform(one.request.seed, len(one.tokens)) for one in ready]
        chosen_B = choose(adjust(logits_BV, ready), self._settings_of(ready), numbers)
        wanted = max(one.request.logprobs for one in ready)
        told = report(logits_BV, chosen_B, wanted) if wanted >= 0 else unreported(len(ready))
        numeric = (~logits_BV.amax(dim=-1).isnan()).tolist()
        for one in ready[already_decoding:]:
            self._roster.promote(one)
            self._tell_prompt_scores(one)
        rows = zip(ready, numeric, chosen_B.tolist(), *told, strict=True)
        for one, is_numeric, token, logprob, alternatives in rows:
            if is_numeric:
                self._advance(one, token, logprob, alternatives)
            else:
                reason = "the scores of this model are not numbers; its weights are damaged"
                self._end(one, Failed(one.request.id, "not_a_number", reason))

    def _advance(self, one: Sequence, token: int, logprob: float, alternatives: list[Alternative]) -> None:
        message = one.advance(token, logprob, alternatives)
        self.tokens += len(message.tokens)
        if message.finish is None:
            self._replies.append((one.owner, message))
        else:
            self._end(one, message)

    def _settings_of(self, ready: list[Sequence]) -> Settings:
        if self._settings is None or self._settings[0] != ready:
            requests = [one.request for one in ready]
            self._settings = ready, settings_of(requests, self.model.shape.vocabulary, self._device)
        return self._settings[1]

    def _score_prompt(self, one: Sequence, x_TD: Tensor) -> None:
        """Score the prompt tokens that follow those of a chunk."""
        following = one.tokens[one.cached + 1 : one.cached + 1 + len(x_TD)]
        if following:
            logits_BV = self.model.logits(x_TD[: len(following)])
            chosen_B = torch.tensor(following, device=self._device)
            logprobs, alternatives = report(logits_BV, chosen_B, max(0, one.request.logprobs))
            one.prompt_logprobs += logprobs
            one.prompt_alternatives += alternatives if one.request.logprobs > 0 else []

    def _tell_prompt_scores(self, one: Sequence) -> None:
        if one.request.score_prompt:
            scores = PromptScores(one.request.id, one.prompt_logprobs, one.prompt_alternatives)
            self._replies.append((one.owner, scores))

    def _add_generate(self, owner: Owner, request: Generate) -> None:
        shape = self.model.shape
        if not self.model.causal:
            wrong: tuple[str, str] | None = (
                "not_generative",
                f"a {shape.family} model sees both sides of a token and cannot continue a text",
            )
        elif any(one.owner == owner and one.request.id == request.id for one in self._all()):
            wrong = "duplicate_id", f"request '{request.id}' is under way already"
        else:
            wrong = sequence.refusal(request, shape.vocabulary, shape.context)
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        self._waiting.append(sequence.begin(owner, request, shape.vocabulary, self._device))

    def _add_embed(self, owner: Owner, request: Embed) -> None:
        wrong = embed.refusal(request, self.model.shape.vocabulary, self.model.shape.context)
        if wrong is not None:
            self._replies.append((owner, Failed(request.id, *wrong)))
            return
        self._embeddings.append(Embedding(owner, request))

    def _step_embedding(self) -> None:
        one = self._embeddings[0]
        if one.step(self.model, EMBED_TOKENS_PER_STEP):
            self._embeddings.popleft()
            vectors = [one.vectors[i] for i in range(len(one.vectors))]
            self._replies.append((one.owner, Vectors(one.request.id, vectors)))
        self.steps += 1

    def _cancel(self, owner: Owner, id_: str, *, tell: bool) -> None:
        for one in self._all():
            if one.owner == owner and one.request.id == id_:
                if isinstance(one, Embedding):
                    self._embeddings.remove(one)
                elif one.slot < 0:
                    self._waiting.remove(one)
                else:
                    self._roster.remove(one)
                if tell:
                    self._replies.append((owner, Tokens(id_, finish="cancelled")))
                return

    def _end(self, one: Sequence, last: Tokens | Failed) -> None:
        self._replies.append((one.owner, last))
        self._roster.remove(one)

    def _all(self) -> list[Sequence | Embedding]:
        running = self._roster.running if self.model.causal else []
        return [*running, *self._waiting, *self._embeddings]
