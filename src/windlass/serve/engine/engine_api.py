"""The protocol of engines: step.Engine, encoder.EncoderEngine, and model_pool.ModelPool over several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windlass.serve.engine.sequence import Owner
from windlass.spec.protocol.wire import EmbeddingVectors, EngineRequest, Failed, PromptScores, Tokens

Reply = tuple[Owner, Tokens | PromptScores | EmbeddingVectors | Failed]


class EngineProtocol(Protocol):
    """What the server needs of an engine."""

    @property
    def steps(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def running_count(self) -> int: ...

    @property
    def waiting_count(self) -> int: ...

    @property
    def is_idle(self) -> bool: ...

    @property
    def blocks_used(self) -> int: ...

    @property
    def blocks_idle(self) -> int: ...

    @property
    def blocks_in_all(self) -> int: ...

    def add(self, owner: Owner, message: EngineRequest) -> None: ...

    def forget(self, owner: Owner) -> None: ...

    def rest(self) -> None: ...

    def step(self) -> Sequence[Reply]: ...
