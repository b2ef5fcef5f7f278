"""The job file: one TOML file that says what to train, on what text, for how long, and how to serve it.

Every table is a frozen model that refuses keys it does not know. `None` means "the planner decides".
The descriptions below are the single source of `windlass init` and of the JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from windlass.spec.cluster import Cluster
from windlass.spec.config_model import Bytes, ConfigModel, Count, Name, Seconds, Share
from windlass.spec.layout import Layout
from windlass.spec.model.decoder import DECODERS, DecoderFamily, RopeScaling
from windlass.spec.serve import Serve
from windlass.spec.sync import Sync

STDLIB = "python:stdlib"
_PASSWORD = re.compile(r"://[^/?#]*:[^/?#]*@|[?&]password=", re.I)


class Clean(ConfigModel):
    """Which documents are kept, and in what form."""

    normalize: bool = Field(True, description="bring text to Unicode NFC and drop control characters")
    min_chars: Annotated[int, Field(ge=1)] = Field(16, description="drop documents shorter than this")
    max_chars: Count | None = Field(None, description="drop documents longer than this")
    max_repetition: Share = Field(
        0.9, description="drop documents in which more than this share of the lines is repeated"
    )
    duplicates: Literal["keep", "exact", "near"] = Field(
        "near", description="which duplicates to drop: none, equal texts, or nearly equal ones too"
    )
    similarity: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.85, description="texts that share this much of their shingles (Jaccard) are nearly equal"
    )


class TokenizerSpec(ConfigModel):
    """How text becomes token ids."""

    kind: Literal["bpe", "char", "word", "file"] = Field(
        "bpe",
        description="train a byte-level BPE, take single characters, the most frequent words between spaces,"
        " or use a given tokenizer.json",
    )
    vocabulary: Count = Field(
        8192, description="size of a trained BPE or of the list of words, special tokens included"
    )
    path: str | None = Field(None, description="tokenizer.json to use when kind is 'file'")

    @model_validator(mode="after")
    def _consistent(self) -> TokenizerSpec:
        if self.kind == "file" and self.path is None:
            raise ValueError("kind = 'file' needs path = 'path/to/tokenizer.json'")
        if self.kind != "file" and self.path is not None:
            raise ValueError("path is only used with kind = 'file'")
        if self.kind == "bpe" and self.vocabulary < 260:
            raise ValueError(
                "a byte-level BPE needs vocabulary of at least 260: 256 bytes and the special tokens"
            )
        if self.kind == "word" and self.vocabulary < 8:
            raise ValueError("a list of words needs vocabulary of at least 8: 7 special tokens and a word")
        return self


class CacheSpec(ConfigModel):
    """How much of a corpus that lies on a store is kept on this machine's disk."""

    policy: Literal["lru", "lfu", "mru", "arc"] = Field(
        "mru",
        description="which shard to evict first: least recently, least frequently or most recently used (best"
        " for shuffled and for repeated reading), or adaptive (arc)",
    )
    bytes: Bytes = Field(10 << 30, description="maximum bytes of shards on disk, e.g. '100GiB'")
    prefetch: Annotated[int, Field(ge=0, le=512)] = Field(
        64, description="maximum number of shards to fetch ahead of their use"
    )
    folder: str | None = Field(
        None,
        description="absolute path of a directory on this machine's disk; cache/ in the home if left out",
    )

    @model_validator(mode="after")
    def _is_absolute(self) -> CacheSpec:
        if self.folder is not None and not PurePath(self.folder).is_absolute():
            raise ValueError(f"folder '{self.folder}' must be an absolute path, e.g. '/scratch/windlass'")
        return self


class Corpus(ConfigModel):
    """The text to train on."""

    sources: tuple[str, ...] = Field(
        (STDLIB,),
        description="files, directories, globs or store URLs; 'python:stdlib' is Python's own library",
    )
    format: Literal["auto", "text", "code", "jsonl", "parquet"] = Field(
        "auto", description="how to read the sources; auto goes by the file name"
    )
    text_field: str = Field("text", description="field of a JSON line or Parquet row that holds the text")
    document: Literal["file", "paragraph", "line"] = Field(
        "file", description="what one document is in a text file"
    )
    split: Literal["auto", "hash", "tail"] = Field(
        "auto",
        description="hold out whole documents by their hash, or the tail of each (auto: of fewer than 20)",
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="share held out for validation"
    )
    store: str | None = Field(
        None,
        description="URL or absolute path where the built corpus is kept for other machines, e.g."
        " 's3://bucket/corpora'; they read it through a cache",
    )
    shard_tokens: Count | None = Field(
        None, description="tokens in one file; if left out 64Mi, or 2Mi with a store, which is quick to fetch"
    )
    clean: Clean = Field(Clean(), description="which documents are kept, and in what form")
    tokenizer: TokenizerSpec = Field(TokenizerSpec(), description="how text becomes token ids")
    cache: CacheSpec = Field(
        CacheSpec(), description="how much of a corpus that lies on a store is kept on this machine's disk"
    )

    @model_validator(mode="after")
    def _has_sources(self) -> Corpus:
        if not self.sources or not all(source.strip() for source in self.sources):
            raise ValueError("sources must name at least one file, directory, glob or URL")
        return self

    @model_validator(mode="after")
    def _names_a_store(self) -> Corpus:
        if self.store is not None and "://" not in self.store and not PurePath(self.store).is_absolute():
            raise ValueError(f"store '{self.store}' must be a URL or an absolute path")
        return self


class NgramSpec(ConfigModel):
    """An n-gram model (family 'ngram'): modified Kneser-Ney, interpolated."""

    order: Annotated[int, Field(ge=1, le=7)] = Field(5, description="longest sequence that is counted")
    prune: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="drop sequences seen no oftener than this, by order; the last number repeats"
    )
    memory: Bytes = Field(1 << 30, description="memory to count in, e.g. '1GiB'; the rest goes to disk")
    runner: Literal["pool", "direct", "flink", "spark", "dataflow"] = Field(
        "pool", description="what counts: local processes (pool), or a runner of Apache Beam; the same model"
    )
    runner_options: tuple[str, ...] = Field(
        (), description="passed on to Beam's runner, as 'key=value', e.g. 'flink_master=host:8081'"
    )
    scratch: str | None = Field(
        None, description="URL where Beam's workers leave what they counted; all of them must reach it"
    )

    @model_validator(mode="after")
    def _has_a_runner_for_its_options(self) -> NgramSpec:
        if self.runner == "pool" and (self.runner_options or self.scratch):
            raise ValueError(
                "runner_options and scratch go with runner = 'direct', 'flink', 'spark' or 'dataflow'"
            )
        if self.runner not in ("pool", "direct") and self.scratch is None:
            raise ValueError(f"runner = '{self.runner}' needs scratch, a place that all its workers reach")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> NgramSpec:
        if len(self.prune) > self.order:
            raise ValueError(f"prune lists {len(self.prune)} numbers, but the order is {self.order}")
        if self.prune and self.prune[0]:
            raise ValueError("prune must begin with 0: single tokens are kept, so that every one has a score")
        if list(self.prune) != sorted(self.prune):
            raise ValueError("prune must not fall: what is kept needs what is shorter")
        return self

    @property
    def thresholds(self) -> tuple[int, ...]:
        """One number for each order."""
        given = self.prune or (0,)
        return given + given[-1:] * (self.order - len(given))


class Hmm(ConfigModel):
    """A hidden Markov model (family 'hmm'), trained by Baum-Welch; a step is one iteration."""

    states: Annotated[int, Field(ge=1, le=65536)] = Field(128, description="number of hidden states")
    initial: Literal["classes", "random"] = Field(
        "classes", description="initial states: classes of tokens with similar neighbours, or random"
    )
    smoothing: Annotated[float, Field(ge=0)] = Field(
        1e-3, description="added to every expected count, so that nothing becomes impossible; 0 for none"
    )
    min_gain: Annotated[float, Field(ge=0)] = Field(
        1e-4, description="end when an iteration gains less than this, in nats a token; 0 for never"
    )
    precision: Literal["float32", "float64"] = Field(
        "float32", description="arithmetic of the expectations; they are always added up exactly"
    )


class MlpSpec(ConfigModel):
    """A feed-forward model of the last tokens (family 'mlp')."""

    window: Annotated[int, Field(ge=1, le=1024)] = Field(8, description="tokens that are looked back at")
    start: Literal["word2vec", "random"] = Field(
        "word2vec",
        description="where the vectors of tokens begin: skip-gram with negative sampling, or anywhere",
    )
    word2vec_epochs: Annotated[int, Field(ge=1)] = Field(5, description="passes over the text (word2vec)")
    negatives: Annotated[int, Field(ge=1)] = Field(5, description="drawn against each true pair (word2vec)")
    distance: Annotated[int, Field(ge=1)] = Field(5, description="farthest pair of tokens (word2vec)")


OWN_TABLES = ("ngram", "hmm", "mlp")
"""Families whose settings are in a table of their own."""
STATISTICS = ("ngram", "hmm")
"""Families that are trained by counting, really or in expectation."""
SPARSE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss")
"""Families with experts."""
GROUPED = tuple(name for name in DECODERS if name not in ("gpt2", "gpt_neox"))
"""Families in which query heads may share key heads."""
WINDOWED = (
    "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma2", "gemma3", "phi3",
    "starcoder2", "gpt_oss",
)  # fmt: skip
"""Families whose layers, all or some, may have a sliding window."""
GRADIENT_KEYS = (
    "batch_sequences", "micro_batch_sequences", "learning_rate", "schedule", "warmup_steps", "final_share",
    "decay_share", "weight_decay", "beta1", "beta2", "epsilon", "clip", "scaling", "mask_share",
)  # fmt: skip
"""Keys of [train] that statistical families do not use."""


class ModelSpec(ConfigModel):
    """The model to train; the planner fills in what is left out."""

    family: DecoderFamily | Literal["bert", "mlp", "ngram", "hmm"] = Field(
        "llama", description="transformers compatible with Hugging Face, or older kinds"
    )
    parameters: Count | None = Field(None, description="aim for about this many weights, e.g. '15M'")
    start_from: str | None = Field(None, description="start from this registered model, e.g. 'base@3'")
    context: Annotated[int, Field(ge=2)] | None = Field(None, description="longest sequence, in tokens")
    layers: Annotated[int, Field(ge=1)] | None = Field(None, description="number of blocks")
    width: Annotated[int, Field(ge=1)] | None = Field(None, description="width of the residual stream")
    heads: Annotated[int, Field(ge=1)] | None = Field(None, description="attention heads")
    kv_heads: Annotated[int, Field(ge=1)] | None = Field(None, description="key/value heads (decoders)")
    ffn_width: Annotated[int, Field(ge=1)] | None = Field(
        None, description="inner width of the feed-forward part"
    )
    tied: bool = Field(
        True, description="share the embedding matrix with the head (gpt2, gemma, falcon and bert always do)"
    )
    rope_theta: Annotated[float, Field(gt=0)] = Field(
        10000.0, description="base of the rotary positions (decoders)"
    )
    rope_scaling: RopeScaling | None = Field(None, description="stretch rotary positions (decoders)")
    window: Annotated[int, Field(ge=1)] | None = Field(
        None, description="tokens that attention sees, in the layers in which the family has a window"
    )
    experts: Annotated[int, Field(ge=2)] | None = Field(
        None, description="experts in each layer (mixtral, qwen2_moe, qwen3_moe, olmoe, gpt_oss)"
    )
    experts_per_token: Annotated[int, Field(ge=1)] = Field(
        2, description="experts that each token is sent to"
    )
    expert_width: Annotated[int, Field(ge=1)] | None = Field(
        None, description="inner width of one expert (default: ffn_width)"
    )
    balance_loss: Annotated[float, Field(ge=0)] = Field(
        0.0, description="weight of the loss that keeps experts equally busy"
    )
    router_z_loss: Annotated[float, Field(ge=0)] = Field(
        0.0, description="weight of the loss that keeps router logits small"
    )
    ngram: NgramSpec = Field(NgramSpec(), description="an n-gram model (family 'ngram')")
    hmm: Hmm = Field(Hmm(), description="a hidden Markov model (family 'hmm')")
    mlp: MlpSpec = Field(MlpSpec(), description="a feed-forward model of the last tokens (family 'mlp')")

    @model_validator(mode="after")
    def _has_only_its_own(self) -> ModelSpec:
        for name in OWN_TABLES:
            if name != self.family and getattr(self, name) != type(getattr(self, name))():
                raise ValueError(f"[model.{name}] belongs to family '{name}', not to {self.family}")
        if self.family in STATISTICS:
            networks = ("parameters", "layers", "width", "heads", "ffn_width", "start_from")
            given = [key for key in networks if getattr(self, key) is not None]
            if given:
                raise ValueError(
                    f"{given[0]} does not go with family '{self.family}'; see [model.{self.family}]"
                )
        if self.family == "mlp" and self.heads is not None:
            raise ValueError("an mlp has no heads")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        given = [key for key in self._foreign_keys() if getattr(self, key) is not None]
        if given:
            raise ValueError(f"{given[0]} does not go with family '{self.family}'")
        if self.family in SPARSE and self.experts is None and self.start_from is None:
            raise ValueError(f"family '{self.family}' needs experts, the number in each layer")
        if self.experts is None and (self.balance_loss or self.router_z_loss or self.experts_per_token != 2):
            raise ValueError("experts_per_token, balance_loss and router_z_loss need experts")
        if self.experts is not None and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than experts {self.experts}"
            )
        if self.parameters is not None and (self.layers or self.width):
            raise ValueError("give either parameters (the planner picks sizes) or layers and width, not both")
        if (self.layers is None) != (self.width is None):
            raise ValueError("layers and width go together: give both or neither")
        if self.width and self.heads and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.start_from is not None and any((self.parameters, self.layers, self.width, self.heads)):
            raise ValueError("start_from brings its own sizes; leave out parameters, layers, width and heads")
        return self

    def _foreign_keys(self) -> list[str]:
        """Name the optional keys that mean nothing for this family."""
        keys = [] if self.family in SPARSE else ["experts", "expert_width"]
        if self.family not in GROUPED:
            keys.append("kv_heads")
        if self.family not in DECODERS or self.family == "gpt2":
            keys.append("rope_scaling")
        return keys if self.family in WINDOWED else [*keys, "window"]


class Train(ConfigModel):
    """How long and how fast to learn."""

    steps: Annotated[int, Field(ge=1)] | None = Field(None, description="number of optimizer steps")
    tokens: Count | None = Field(None, description="number of training tokens, e.g. '20M'")
    time: Seconds | None = Field(None, description="plan for this much time, e.g. '3m'")
    objective: Literal["causal", "masked"] | None = Field(
        None, description="next token, or masked tokens (bert)"
    )
    batch_sequences: Annotated[int, Field(ge=1)] | None = Field(None, description="sequences in one step")
    micro_batch_sequences: Annotated[int, Field(ge=1)] | None = Field(
        None, description="sequences computed at once; the rest of the batch accumulates"
    )
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(None, description="peak learning rate")
    schedule: Literal["cosine", "wsd", "constant"] = Field(
        "cosine", description="after warm-up: fall as a cosine, stay and then decay (wsd), or stay"
    )
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(None, description="steps of linear warm-up")
    final_share: Share = Field(0.1, description="learning rate at the end, as a share of the peak")
    decay_share: Share = Field(0.2, description="share of the steps in which wsd decays")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.1, description="decay of matrices; vectors never decay"
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="AdamW first moment")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(0.95, description="AdamW second moment")
    epsilon: Annotated[float, Field(gt=0)] = Field(1e-8, description="AdamW epsilon")
    clip: Annotated[float, Field(ge=0)] = Field(
        1.0, description="largest gradient norm; 0 turns clipping off"
    )
    scaling: Literal["constant", "linear", "sqrt"] = Field(
        "constant",
        description="with more workers: keep the batch, or multiply it and the learning rate in proportion"
        " (linear) or by the root (sqrt)",
    )
    mask_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.15, description="share of tokens masked (masked objective)"
    )
    evaluate_every: Annotated[int, Field(ge=1)] | None = Field(None, description="steps between evaluations")
    evaluate_sequences: Annotated[int, Field(ge=1)] | None = Field(
        None, description="validation sequences per evaluation during training; the last one takes all"
    )
    checkpoint_every: Annotated[int, Field(ge=1)] | None = Field(
        None, description="steps between checkpoints"
    )
    checkpoint_keep: Annotated[int, Field(ge=1)] = Field(2, description="checkpoints to keep")
    sample_prompts: tuple[str, ...] = Field((), description="texts to continue at every evaluation")
    log_every: Annotated[int, Field(ge=1)] = Field(10, description="steps between lines of the journal")

    @model_validator(mode="after")
    def _consistent(self) -> Train:
        given = [k for k in ("steps", "tokens", "time") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of steps, tokens, time; not {' and '.join(given)} together")
        batch, micro = self.batch_sequences, self.micro_batch_sequences
        if batch and micro and batch % micro:
            raise ValueError(f"batch_sequences {batch} is not a multiple of micro_batch_sequences {micro}")
        if self.steps and self.warmup_steps and self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be fewer than steps {self.steps}")
        return self


class MachineSpec(ConfigModel):
    """What one process may use."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to compute")
    threads: Annotated[int, Field(ge=1)] | None = Field(
        None, description="CPU threads; all cores if left out"
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="arithmetic of the matrix products"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="use torch.compile (auto: when it pays)"
    )


class Checkpoint(ConfigModel):
    """Where checkpoints go, how often, and how long they stay."""

    store: str | None = Field(
        None,
        description="URL or absolute path where copies of the checkpoints are kept, e.g. 's3://bucket/runs';"
        " they are uploaded in the background",
    )
    keep: Annotated[int, Field(ge=1)] | None = Field(
        None, description="checkpoints on local disk; [train] checkpoint_keep if left out"
    )
    store_keep: Annotated[int, Field(ge=1)] = Field(3, description="checkpoints in the store")
    keep_every: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="also keep one checkpoint of every so many steps for ever, in the store if there is one",
    )
    seconds: Seconds | None = Field(
        None, description="save at least this often, e.g. '30s', whatever [train] checkpoint_every says"
    )
    incremental: Literal["auto", "off"] = Field(
        "auto", description="write and send only files that differ from those of the checkpoint before"
    )
    verify_every: Annotated[int, Field(ge=1)] | None = Field(
        None, description="load every so many checkpoints again in a process of its own, and compare the loss"
    )

    @model_validator(mode="after")
    def _names_a_store(self) -> Checkpoint:
        if self.store is not None and "://" not in self.store and not PurePath(self.store).is_absolute():
            raise ValueError(f"store '{self.store}' must be a URL or an absolute path")
        return self


class Elastic(ConfigModel):
    """How a run with `--elastic` continues when workers join, leave or fail."""

    min_workers: Annotated[int, Field(ge=1, le=65536)] = Field(
        1, description="minimum number of workers to train with; with fewer the run waits"
    )
    spares: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="spare workers kept ready, to replace a lost one at once"
    )
    deterministic: bool = Field(
        False,
        description="end with the same bits whichever workers join or fail: gradients are added up in the"
        " order of the [layout], however many workers compute them",
    )
    balance: bool = Field(True, description="give slower workers smaller shares of the batch")
    slow_factor: Annotated[float, Field(ge=1.5)] = Field(
        4.0, description="exclude a worker that is slower than the others by this factor"
    )


class Job(ConfigModel):
    """The whole file."""

    name: Name = Field("job", description="name of the run and of the registered model")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(1, description="fixes every random choice")
    corpus: Corpus = Field(Corpus(), description="the text to train on")
    model: ModelSpec = Field(
        ModelSpec(), description="the model to train; the planner fills in what is left out"
    )
    train: Train = Field(Train(), description="how long and how fast to learn")
    layout: Layout = Field(
        Layout(), description="how the model, the batch and the sequence are divided among processes"
    )
    sync: Sync = Field(Sync(), description="how replicas agree on their weights")
    checkpoint: Checkpoint = Field(
        Checkpoint(), description="where checkpoints go, how often, and how long they stay"
    )
    elastic: Elastic = Field(
        Elastic(), description="how a run with --elastic continues when workers join, leave or fail"
    )
    machine: MachineSpec = Field(MachineSpec(), description="what one process may use")
    cluster: Cluster = Field(
        Cluster(), description="where the processes of a run are started, and what each of them gets"
    )
    serve: Serve = Field(Serve(), description="how to answer")

    @model_validator(mode="after")
    def _consistent(self) -> Job:
        wanted = objective_of(self)
        if (wanted == "masked") != (self.model.family == "bert"):
            right = "masked" if self.model.family == "bert" else "causal"
            raise ValueError(
                f"[train] objective '{wanted}' does not fit family '{self.model.family}'; use '{right}'"
            )
        reason = next(_foreign(self), None)
        if reason is not None:
            raise ValueError(reason)
        if self.sync.local and self.layout.shares is not None:
            raise ValueError("[layout] shares go with [sync] policy = 'every-step' only")
        reason = server_misfit(self)
        if reason is not None:
            raise ValueError(reason)
        return self

    @model_validator(mode="after")
    def _is_no_secret(self) -> Job:
        """A job is written into runs and registered models, where others read it."""
        if _PASSWORD.search(self.serve.state or ""):
            raise ValueError("[serve] state has a password; keep it in ~/.pgpass or $WINDLASS_STATE")
        return self


def _foreign(job: Job) -> Iterator[str]:
    """Yield why settings do not go with a family that is trained by counting: they would be ignored."""
    family = job.model.family
    if family not in STATISTICS:
        return
    if family == "ngram" and job.sync != Sync():
        yield "[sync] is for what is learnt step by step; n-grams are counted once, with nothing to agree on"
    elif job.sync.policy != "server" and job.sync != Sync():
        yield "[sync] of family 'hmm' has policy = 'server' or none: its counts are added up exactly"
    defaults = Train()
    for key in GRADIENT_KEYS:
        if getattr(job.train, key) != getattr(defaults, key):
            yield f"[train] {key} belongs to what learns by gradients, not to family '{family}'; leave it out"


def server_misfit(job: Job) -> str | None:
    """Return why a job cannot run on parameter servers, None if it can or does not use them."""
    if job.sync.policy != "server":
        return None
    if job.layout.world != job.layout.dp:
        return f"[sync] policy = 'server' goes with dp alone, not with layout {job.layout}"
    if job.layout.shares is not None:
        return "[layout] shares do not go with [sync] policy = 'server': workers take what they can"
    if job.elastic.deterministic:
        return (
            "[elastic] deterministic does not go with [sync] policy = 'server', whose mode = 'synchronous'"
            " is deterministic by itself"
        )
    if job.checkpoint.verify_every is not None and job.sync.mode != "synchronous":
        return (
            f"[checkpoint] verify_every does not go with [sync] mode = '{job.sync.mode}': which batch comes"
            " after a checkpoint is not known"
        )
    return None


def objective_of(job: Job) -> Literal["causal", "masked"]:
    """Return the training objective: the requested one, or the family's own."""
    if job.train.objective is not None:
        return job.train.objective
    return "masked" if job.model.family == "bert" else "causal"
