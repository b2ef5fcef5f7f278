"""Every decoder family next to transformers: logits, gradients, and directories both ways.

A tiny model with random weights is built by transformers and written to a directory. Ours is loaded from it.
Compared are the logits and the gradient of the loss; then ours is written, loaded by transformers and by us
again, and must be the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windlass.lab.torch.family_cases import CASES, FamilyCase
from windlass.models.huggingface import load_model, save_model
from windlass.models.language import LanguageModel
from windlass.models.loss import summed_loss
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint

TOLERANCE = 1e-4
NEGLIGIBLE = 1e-3
"""Gradients below this share of the largest are compared with the largest: that of a key's bias is zero but
for rounding."""
_PLAIN_CODE = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""The reference without fused kernels: the backward pass of its grouped experts is not exact on CPUs."""
SEQUENCES, LENGTH = 2, 24


@dataclass(frozen=True)
class FamilyResult:
    """How far one family is from transformers, relative to the largest value."""

    name: str
    family: str
    logit_difference: float
    gradient_difference: float
    round_trip: bool

    @property
    def is_equal(self) -> bool:
        return max(self.logit_difference, self.gradient_difference) <= TOLERANCE and self.round_trip


def prove_cases(cases: Sequence[FamilyCase] = CASES) -> Iterator[FamilyResult]:
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            yield compare(case, Path(folder))


def compare(case: FamilyCase, folder: Path) -> FamilyResult:
    """Compare one family with transformers; `folder` is for its files."""
    torch.manual_seed(0)
    theirs = reference(case)
    theirs.save_pretrained(folder / "theirs")
    ours = load_model(folder / "theirs")
    tokens_BT = torch.randint(3, case.arguments["vocab_size"], (SEQUENCES, LENGTH))
    with torch.no_grad():
        expected = theirs(tokens_BT).logits
        logits = difference(ours.logits(ours(tokens_BT)), expected)
    gradients = _gradient_difference(ours, theirs, tokens_BT, folder)
    save_model(ours, folder / "ours")
    again = _loaded_by_transformers(folder / "ours")
    with torch.no_grad():
        there = difference(again(tokens_BT).logits, expected) <= TOLERANCE
    back = load_model(folder / "ours")
    same = all(torch.equal(a, b) for a, b in zip(ours.parameters(), back.parameters(), strict=True))
    family = ours.shape.family
    return FamilyResult(case.name, family, logits, gradients, there and same and back.shape == ours.shape)


def reference(case: FamilyCase) -> Any:
    """Build the model of transformers with random weights, norms and biases included."""
    import transformers

    config = getattr(transformers, case.config)(**case.arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, **_PLAIN_CODE)  # type: ignore[no-untyped-call]
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            center = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(center + 0.15 * torch.randn_like(parameter))
    return model


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))


def _gradient_difference(ours: LanguageModel, theirs: Any, tokens_BT: Tensor, folder: Path) -> float:
    """Compare the gradients of the loss.

    Theirs are written as if they were weights, so that the same mapping of names and arrangements reads them.
    """
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:].contiguous()
    logits = theirs(inputs_BT).logits.flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, targets_BT.flatten(), reduction="sum").backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    theirs.save_pretrained(folder / "gradients")
    expected = dict(load_model(folder / "gradients").named_parameters())
    summed_loss(ours, ours(inputs_BT), targets_BT).backward()  # type: ignore[no-untyped-call]
    worst, floor = 0.0, NEGLIGIBLE * max(float(grad.abs().max()) for grad in expected.values())
    for name, parameter in ours.named_parameters():
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        size = max(floor, float(expected[name].abs().max()))
        worst = max(worst, float((found - expected[name]).abs().max()) / size)
        parameter.grad = None
    return worst


def _loaded_by_transformers(folder: Path) -> Any:
    import transformers

    loader = transformers.AutoModelForCausalLM
    model: Any = loader.from_pretrained(folder, local_files_only=True, **_PLAIN_CODE)
    return model.eval()


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.families_proof")
    parser.add_argument("--families", default="", help="only these, separated by commas")
    wanted = {name for name in parser.parse_args(argv).families.split(",") if name}
    import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    cases = [case for case in CASES if not wanted or wanted & {case.name, case.name.partition(",")[0]}]
    for result in prove_cases(cases):
        emit({"result": {**asdict(result), "is_equal": result.is_equal}})
    return 0


if __name__ == "__main__":
    run_entrypoint(main)
