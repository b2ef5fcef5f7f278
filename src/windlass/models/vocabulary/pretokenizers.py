"""The pre-tokenizers of byte-level BPE vocabularies, by the name that GGUF gives them.

The expressions are those of the models' published tokenizer.json; GGUF stores only a name. A name that is
not here is refused, because text cut at other places gives other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windlass.spec.errors import BadInput, did_you_mean

_S = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = _S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
SINGLE_DIGITS = _S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
WITH_MARKS = _S + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _LINES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = r"[^\r\n\p{L}\p{N}]?"
O200K = (
    f"{_WORD}{_UPPER}*{_LOWER}+{_S}?|{_WORD}{_UPPER}+{_LOWER}*{_S}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
TEKKEN = (
    f"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _LINES
)
CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
OLDER_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
SEED = _S + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _LINES


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is cut before tokens are merged, in the form of tokenizer.json."""

    steps: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    """Whether a piece that is a token stays whole."""
    begins: bool = False
    """Whether a text begins with the bos token unless the file says otherwise."""


def pre_tokenizer_of(name: str, where: str) -> PreTokenizer:
    """Return the pre-tokenizer of a name in `tokenizer.ggml.pre`."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise BadInput(
            f"{where}: the pre-tokenizer '{name[:40]}' is not known",
            hint=did_you_mean(name[:40], sorted(PRE_TOKENIZERS)),
        )
    return found


def _bytes(*, words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


def _cut(expression: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def _steps(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _by(*expressions: str, **options: Any) -> PreTokenizer:
    return PreTokenizer(_steps(*(_cut(each) for each in expressions), _bytes(words=False)), **options)


_GPT2 = PreTokenizer(_bytes(words=True))
_DIGITS = PreTokenizer(_steps({"type": "Digits", "individual_digits": True}, _bytes(words=True)))
_LLAMA3 = _by(CL100K, ignore_merges=True, begins=True)
_QWEN2 = _by(SINGLE_DIGITS, normalizer={"type": "NFC"})
_DEFAULT = PreTokenizer(
    _steps(
        {"type": "Punctuation", "behavior": "Contiguous"},
        _bytes(words=True),
        {"type": "Digits", "individual_digits": False},
        _cut("[0-9][0-9][0-9]"),
    )
)
_DEEPSEEK3 = _by(r"\p{N}{1,3}", CJK, DEEPSEEK)

PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "mellum", "exaone4", "trillion"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    "command-r": PreTokenizer(_DIGITS.steps, {"type": "NFC"}),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2", "pixtral"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _by(CL100K)),
    "glm4": _by(CL100K, ignore_merges=True),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "megrez"), _QWEN2),
    "qwen35": _by(WITH_MARKS, normalizer={"type": "NFC"}),
    **dict.fromkeys(("stablelm2", "hunyuan", "grok-2", "solar-open"), _by(SINGLE_DIGITS)),
    **dict.fromkeys(("gpt-4o", "llama4"), _by(O200K)),
    "tekken": _by(TEKKEN, ignore_merges=True, begins=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "deepseek-coder": _by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", OLDER_CJK, r"\p{N}"),
    "seed-coder": _by(SEED),
    **dict.fromkeys(("falcon", "default"), _DEFAULT),
}  # fmt: skip
"""By the name in `tokenizer.ggml.pre`; a file that names none was written before there were names."""
