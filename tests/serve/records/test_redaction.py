"""Redaction takes out what it promises, leaves what merely looks alike, and takes time in proportion."""

from __future__ import annotations

import ipaddress
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.records.redaction import hide_keys, is_card, is_iban, redact


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("write to ada.lovelace+x@mail.example.co.uk today", "write to [email] today"),
        ("<ada@example.com>, bob_1@example.org.", "<[email]>, [email]."),
        ("мария@пример.рф", "[email]"),
        ("card 4111 1111 1111 1111, or 5500-0000-0000-0004", "card [card], or [card]"),
        ("378282246310005", "[card]"),
        ("IBAN GB82 WEST 1234 5698 7654 32.", "IBAN [iban]."),
        ("DE89370400440532013000", "[iban]"),
        ("from 192.168.0.17: refused", "from [ip]: refused"),
        ("at 2001:db8::8a2e:370:7334 and ::1", "at [ip] and [ip]"),
        ("call +49 30 901820 or (030) 901820-12", "call [phone] or [phone]"),
        ("call 415-555-2671 or (415) 555-2671 or +1 415 555 2671", "call [phone] or [phone] or [phone]"),
        ("电话 +86 138 0013 8000。", "电话 [phone]。"),
        ("the key wlk_abcdefghijklmnop-_0 leaked", "the key [key] leaked"),
    ],
)
def test_personal_data_is_removed(text: str, safe: str) -> None:
    assert redact(text) == safe


@pytest.mark.parametrize(
    "text",
    [
        "To be, or not to be: that is the question.",
        "4111 1111 1111 1112 is no card",
        "version 1.2.3 of 2026-11-16 at 17:05:33, 12:30",
        "999.1.2.3 is no address",
        "3.14159265358979, 1e-9, 10**6, 0x1F, 1,234,567.89",
        "GB82 WEST 1234 5698 7654 33",
        "@home a@b user@localhost",
        "std::vector<int>::iterator; x::y; x[1:2:3]",
        "call ::= primary; Foo::bar(), a :: b",
        "token ids 101 2023 2003 1037 7953 102",
        "在1998年，共有12345人。",
    ],
)
def test_what_merely_looks_alike_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text())
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.lists(st.integers(0, 9), min_size=12, max_size=18).filter(any), st.sampled_from(["", " ", "-"]))
def test_every_card_number_goes(digits: list[int], between: str) -> None:
    last = next(d for d in range(10) if is_card("".join(map(str, [*digits, d]))))
    card = between.join(map(str, [*digits, last]))
    assert redact(f"pay with {card}, please") == "pay with [card], please"


@given(st.sampled_from(["DE", "GB", "FR"]), st.text("ABCXYZ0123456789", min_size=11, max_size=28))
def test_every_iban_goes(country: str, account: str) -> None:
    iban = next(
        f"{country}{check:02d}{account}" for check in range(100) if is_iban(f"{country}{check:02d}{account}")
    )
    assert redact(f"to {iban}.") == "to [iban]."


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(int)))
def test_every_address_goes(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert redact(f"from {address} at noon") == "from [ip] at noon"
    assert redact(f"from {address.exploded} at noon") == "from [ip] at noon"


@given(st.text(), st.text())
def test_no_key_survives_in_any_text(before: str, after: str) -> None:
    token = "wlk_" + secrets.token_urlsafe(32)
    for hidden in (redact, hide_keys):
        assert token not in hidden(f"{before}{token}{after}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["1", "1 ", "a", "a.", "a@", "a@a.", ":", "1:", "1.", "+1", "00 ", "(0", "A1", "GB82 ", "wlk_", "-", "%"],
)
def test_a_long_text_of_any_kind_ends_soon(unit: str) -> None:
    """Time in proportion to the square of so many characters would be hours."""
    redact(unit * (300_000 // len(unit)))
