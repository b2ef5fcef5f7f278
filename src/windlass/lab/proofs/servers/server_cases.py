"""The runs of the parameter-server proof: the job, the mode, and which processes are killed when."""

from __future__ import annotations

from dataclasses import dataclass

STEPS, CHECKPOINT_EVERY = 150, 40
ITERATIONS, PASSES = 6, 10
CORPUS = """
seed = 7
[corpus]
sources = ["topics.txt"]
document = "paragraph"
validation_share = 0.2
[corpus.tokenizer]
vocabulary = 400
[machine]
compile = "off"
threads = 1
"""
NETWORK = f"""{CORPUS}
[model]
layers = 2
width = 32
heads = 2
context = 64
[train]
steps = {STEPS}
batch_sequences = 12
learning_rate = 1e-3
evaluate_every = {STEPS}
checkpoint_every = {CHECKPOINT_EVERY}
log_every = 1
"""
HIDDEN = f"""{CORPUS}
[model]
family = "hmm"
context = 64
[model.hmm]
states = 384
min_gain = 0
[train]
steps = {ITERATIONS}
evaluate_every = {ITERATIONS}
checkpoint_every = 3
"""
VECTORS = f"""{CORPUS}
[model]
family = "mlp"
layers = 1
width = 32
context = 64
[model.mlp]
word2vec_epochs = {PASSES}
[train]
steps = 12
batch_sequences = 12
evaluate_every = 12
log_every = 1
"""

Strike = tuple[int, str, int]
"""(step or pass, role, number) of each kill."""
STRIKES: tuple[Strike, ...] = ((30, "worker", 1), (60, "server", 1), (95, "server", 0))
"""None is at a checkpoint boundary."""
STRIKES_HIDDEN: tuple[Strike, ...] = ((1, "worker", 1), (2, "server", 1), (4, "server", 0))
STRIKES_VECTORS: tuple[Strike, ...] = ((1, "worker", 0), (3, "server", 1), (5, "server", 0))


@dataclass(frozen=True)
class ServerCase:
    """A run, and the processes killed in it."""

    name: str
    job: str = NETWORK
    workers: int = 3
    settings: tuple[str, ...] = ()
    strikes: tuple[Strike, ...] = ()

    @property
    def paced_by(self) -> str:
        """The event whose count triggers the kills."""
        return "vectors" if self.job is VECTORS else "step"

    @property
    def bound(self) -> int:
        """How many updates may be lost."""
        return CHECKPOINT_EVERY if "sync.log=false" in self.settings else 0


def server(mode: str = "synchronous", *more: str) -> tuple[str, ...]:
    return ("sync.policy=server", "sync.servers=2", f"sync.mode={mode}", *more)


CASES = (
    ServerCase("local", workers=1),
    ServerCase("one", workers=1, settings=server()),
    ServerCase("calm", settings=server()),
    ServerCase("struck", settings=server(), strikes=STRIKES),
    ServerCase("async", settings=server("asynchronous")),
    ServerCase("async-struck", settings=server("asynchronous"), strikes=STRIKES),
    ServerCase("unlogged", settings=server("synchronous", "sync.log=false"), strikes=STRIKES[1:2]),
    ServerCase("hmm-local", HIDDEN, workers=1),
    ServerCase("hmm-struck", HIDDEN, settings=server(), strikes=STRIKES_HIDDEN),
    ServerCase(
        "hmm-async-struck", HIDDEN, workers=2, settings=server("asynchronous"), strikes=STRIKES_HIDDEN
    ),
    ServerCase("mlp-local", VECTORS, workers=1),
    ServerCase("mlp-one-struck", VECTORS, workers=1, settings=server(), strikes=STRIKES_VECTORS),
    ServerCase("mlp-async-struck", VECTORS, settings=server("asynchronous"), strikes=STRIKES_VECTORS),
)
