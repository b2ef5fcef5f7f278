"""What libraries raise becomes a line that people can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.elastic.error_summary import MAX_CHARACTERS, plain_reason

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (
            f"{GLOO}pair.cc:553] Connection closed by peer [10.144.179.2]:1674. This is typically caused by"
            " the peer",
            "lost the connection to 10.144.179.2",
        ),
        (f"{GLOO}pair.cc:537] Read error [::1]:99: Connection reset by peer", "lost the connection to ::1"),
        (f"{GLOO}pair.cc:341] writev [::ffff:10.0.0.7]:8: Broken pipe", "lost the connection to 10.0.0.7"),
        (
            "The client socket has timed out after 15000ms while trying to connect to (10.0.0.2, 41875).",
            "waited too long for 10.0.0.2",
        ),
        (
            f"Gloo connectFullMesh failed with {GLOO}pair.cc:144] no error",
            "Gloo connectFullMesh failed with no error",
        ),
        (
            f"{GLOO}unbound_buffer.cc:81] Timed out waiting 9000ms for recv operation to complete",
            "Timed out waiting 9000ms for recv operation to complete",
        ),
        ("rank 2 did not meet the others at step 7", "rank 2 did not meet the others at step 7"),
        ("", "failed without a message"),
    ],
)
def test_a_reason_is_reported_in_plain_words(text: str, plain: str) -> None:
    assert plain_reason(text) == plain


@given(st.text())
def test_a_reason_is_never_empty_or_long(text: str) -> None:
    assert 0 < len(plain_reason(text)) <= MAX_CHARACTERS


def test_a_long_reason_shows_that_it_was_cut() -> None:
    assert plain_reason("word " * 100).endswith("...")
