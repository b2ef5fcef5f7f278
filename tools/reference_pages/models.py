"""docs/reference/models.md: every model family and what can be done with it, from the tables of the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reference_pages.markdown import code, head, table, whole
from windlass.models.gguf.architectures import ARCHITECTURES, MIXTURE
from windlass.serve.engine.native import missing_feature
from windlass.spec.config import ARCHITECTURES as CLASSES
from windlass.spec.job import SPARSE, WINDOWED
from windlass.spec.model.decoder import DECODERS, FEATURES, DecoderShape
from windlass.spec.model.decoder_config import CONFIGS

SIZES: dict[str, Any] = {
    "vocabulary": 8, "context": 8, "layers": 1, "width": 16, "heads": 2, "ffn_width": 16,
}  # fmt: skip
EXPERTS = {"experts": 2, "experts_per_token": 1, "expert_width": 8}


def page() -> str:
    """Return the page."""
    lines = head(
        "Models",
        "Every family is trained (`[model] family`), imported and exported as a Hugging Face directory,"
        " evaluated and served. `dp`, `sharded`, `tp`, `pp` and `cp` divide every decoder and BERT; `ep`"
        " (experts on different processes) does not exist. `windlass prove families` compares each decoder"
        " with transformers, `windlass prove layouts --families NAME` its layouts with one process.",
        "A field of config.json that would change the result and that a family does not have is refused by"
        " name. GPUs and vLLM were never run.",
    )
    lines += table(
        (
            "family",
            "model_type",
            "first architecture",
            "native engine, int8, int4",
            "LoRA",
            "GGUF in and out",
            "windows",
        ),
        (_row(family) for family in DECODERS),
    )
    lines += [
        "Encoders: `bert`, with its head for masked tokens or without (MiniLM, BGE, E5), by torch; pooling"
        " as the directory of sentence-transformers states it. Older families: `mlp`, `ngram`, `hmm`"
        " ([statistical models](../statistical.md)).",
        "",
        "## Features",
        "",
        "What each decoder family does differently from Llama, which normalises the input of each part (RMS),"
        " rotates whole heads, has no biases and a SwiGLU.",
        "",
    ]
    lines += table(("family", "features"), ((code(f), ", ".join(_features(f)) or "none") for f in DECODERS))
    return whole(lines)


def _row(family: str) -> tuple[str, ...]:
    shape = DecoderShape.model_validate({"family": family, **SIZES, **(EXPERTS if family in SPARSE else {})})
    types = CONFIGS[family].model_types
    known = {each.model_type for each in (*ARCHITECTURES.values(), MIXTURE)} | {"mistral", "mixtral"}
    return (
        code(family),
        ", ".join(map(code, types)),
        code(CLASSES[family][0]),
        "yes" if missing_feature(shape) is None else "by torch",
        "attention" if family in SPARSE else "all matrices",
        "yes" if known & set(types) else "no",
        "yes" if family in WINDOWED else "no",
    )


def _features(family: str) -> Iterator[str]:
    for name, value in FEATURES[family].items():
        words = name.replace("_", " ")
        if value is True:
            yield words
        elif value is False:
            yield f"no {words}" if name != "gated" else "no gate"
        else:
            yield f"{words} {value}"
