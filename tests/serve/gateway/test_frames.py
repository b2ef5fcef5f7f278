"""The quick writer of frames writes what the models write."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.routes import chat, completions
from windlass.serve.gateway.schemas.frames import QuickFrames
from windlass.serve.gateway.text.tokenise import NumberText

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
MODELS = st.from_regex(r"[\w.:@-]{1,20}", fullmatch=True)


def _chat(model: str) -> chat.ChatTask:
    return chat.ChatTask(
        id="chatcmpl-1",
        model=model,
        created=1,
        text=NumberText(),
        requests=[],
        answers=[],
        scored=False,
        prompt_tokens=1,
    )


def _completion(model: str) -> completions.CompletionTask:
    return completions.CompletionTask(
        id="cmpl-1",
        model=model,
        created=1,
        text=NumberText(),
        requests=[],
        answers=[],
        shown=None,
        scored=False,
        alternatives=False,
        prompt_tokens=1,
    )


@given(text=TEXT, model=MODELS, place=st.integers(0, 127), with_usage=st.booleans())
def test_a_quick_chat_frame_is_byte_for_byte_that_of_the_model(
    text: str, model: str, place: int, with_usage: bool
) -> None:
    slow = partial(chat._text_chunk, _chat(model), place, with_usage=with_usage)
    assert QuickFrames(slow).write(text) == slow(text)


@given(text=TEXT, model=MODELS, place=st.integers(0, 127), with_usage=st.booleans())
def test_a_quick_completion_frame_is_byte_for_byte_that_of_the_model(
    text: str, model: str, place: int, with_usage: bool
) -> None:
    slow = partial(completions._text_chunk, _completion(model), place, with_usage=with_usage)
    assert QuickFrames(slow).write(text) == slow(text)
