"""The quick writer of frames writes what the models write."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis
from hypothesis import strategies as st

from windlass.serve.gateway.routes import chat, completions
from windlass.serve.gateway.routes.generation import QuickFrames, text_frame
from windlass.serve.gateway.text.tokenise import NumberText

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
MODELS = st.from_regex(r"[\w.:@-]{1,20}", fullmatch=True)


def given(model: str) -> dict[str, Any]:
    return {
        "id": "answer-1",
        "model": model,
        "created": 1,
        "text": NumberText(),
        "requests": [],
        "answers": [],
        "scored": False,
        "prompt_tokens": 1,
    }


@hypothesis.given(text=TEXT, model=MODELS, place=st.integers(0, 127), with_usage=st.booleans())
def test_a_quick_chat_frame_is_byte_for_byte_that_of_the_model(
    text: str, model: str, place: int, with_usage: bool
) -> None:
    answers = chat.ChatAnswers(**given(model))
    slow = partial(text_frame, answers, place, with_usage=with_usage)
    assert QuickFrames(slow).write(text) == slow(text)


@hypothesis.given(text=TEXT, model=MODELS, place=st.integers(0, 127), with_usage=st.booleans())
def test_a_quick_completion_frame_is_byte_for_byte_that_of_the_model(
    text: str, model: str, place: int, with_usage: bool
) -> None:
    answers = completions.CompletionAnswers(**given(model), alternatives=False)
    slow = partial(text_frame, answers, place, with_usage=with_usage)
    assert QuickFrames(slow).write(text) == slow(text)
