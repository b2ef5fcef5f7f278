"""Removes personal data and keys from a text before it is stored anywhere.

E-mail addresses, telephone and card numbers, IBANs, IP addresses and our own keys become "[email]",
"[phone]", "[card]", "[iban]", "[ip]" and "[key]". Every pattern is bounded, so the time is linear in the
text; check digits separate real numbers from lookalikes (Luhn's for cards, ISO 7064's for IBANs).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import partial

KEY = re.compile(r"wlk_[A-Za-z0-9_-]{8,128}")
_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?(?![A-Za-z0-9])"
)
_CARD = re.compile(r"(?<![\d.])\d(?:[ -]?\d){12,18}(?![\d])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(
    r"(?<![0-9A-Za-z:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:(?:\d{1,3}\.){3}\d{1,3})?(?![0-9A-Za-z:])"
)
_PHONE = re.compile(
    r"(?<![\w.+-])(?:\+|00)\d{1,3}[ ./-]?(?:\(\d{1,5}\)[ ./-]?)?\d(?:[ ./-]?\d){5,13}(?!\w)"
    r"|(?<![\w.+-])\(?0\d{1,4}\)?[ ./-]\d(?:[ ./-]?\d){4,10}(?!\w)"
    r"|(?<![\w.+-])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)"
)


def redact(text: str) -> str:
    """Return the text with every match replaced by its kind; idempotent."""
    for pattern, kind, real in _KINDS:
        text = pattern.sub(partial(_replaced, kind, real), text)
    return text


def hide_keys(text: str) -> str:
    """Return the text without our own keys, which no log may hold even where prompts are logged."""
    return KEY.sub("[key]", text)


def is_card(text: str) -> bool:
    """Whether digits are a card number: their count and Luhn's sum are right."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [sum(divmod(2 * d, 10)) for d in digits[-2::-2]]
    return 13 <= len(digits) <= 19 and any(digits) and (sum(doubled) + sum(digits[-1::-2])) % 10 == 0


def is_iban(text: str) -> bool:
    """Whether letters and digits are an IBAN: rearranged and read as a number, it is 1 modulo 97."""
    packed = re.sub(r"[ -]", "", text).upper()
    if not 15 <= len(packed) <= 34 or not packed.isascii():
        return False
    return int("".join(str(int(c, 36)) for c in packed[4:] + packed[:4])) % 97 == 1


def is_address(text: str) -> bool:
    """Whether a text is an IP address other than "::", which is common in programs."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return text != "::"


def _replaced(kind: str, real: Callable[[str], bool], match: re.Match[str]) -> str:
    return kind if real(match[0]) else match[0]


def _always(text: str) -> bool:
    return True


_KINDS: tuple[tuple[re.Pattern[str], str, Callable[[str], bool]], ...] = (
    (KEY, "[key]", _always),
    (_EMAIL, "[email]", _always),
    (_IBAN, "[iban]", is_iban),
    (_CARD, "[card]", is_card),
    (_IPV6, "[ip]", is_address),
    (_IPV4, "[ip]", is_address),
    (_PHONE, "[phone]", _always),
)
