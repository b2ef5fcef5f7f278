"""What a server drops or changes is told; what it adds, or writes in another way, is not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.cluster.test_kubernetes_manifests import everything, of_kind
from windlass.cluster.kubernetes.apply_check import check_stored, missing
from windlass.spec.errors import BadInput


def job() -> dict[str, Any]:
    return of_kind("Job", copy.deepcopy(everything()))


def test_what_is_stored_as_it_was_sent_is_fine() -> None:
    for manifest in everything():
        assert check_stored(manifest, copy.deepcopy(manifest)) == manifest


def test_defaults_that_a_server_adds_are_fine() -> None:
    stored = job()
    stored["spec"]["backoffLimit"] = 2147483647
    stored["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    stored["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent"
    check_stored(job(), stored)


def test_a_dropped_field_is_an_error_in_plain_words() -> None:
    stored = job()
    del stored["spec"]["backoffLimitPerIndex"]
    with pytest.raises(
        BadInput, match=r"did not store all of Job .*\.spec\.backoffLimitPerIndex was dropped"
    ):
        check_stored(job(), stored)


def test_a_changed_field_is_an_error() -> None:
    stored = job()
    stored["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    assert list(missing(job(), stored)) == [
        ".spec.podReplacementPolicy became 'TerminatingOrFailed' instead of 'Failed'"
    ]


def test_false_and_zero_must_not_be_dropped() -> None:
    assert list(missing({"a": False}, {})) == [".a was dropped"]
    assert list(missing({"a": 0}, {})) == [".a was dropped"]


def test_nothing_may_be_dropped() -> None:
    assert list(missing({"a": [], "b": {}, "c": "", "d": None}, {})) == []


@pytest.mark.parametrize(("sent", "stored"), [("1000m", "1"), ("1Gi", "1024Mi"), ("2", 2), ("0.5", "500m")])
def test_a_quantity_may_be_written_in_another_way(sent: Any, stored: Any) -> None:
    assert list(missing({"cpu": sent}, {"cpu": stored})) == []


def test_entries_of_lists_are_distinguished_by_name() -> None:
    sent = [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    assert list(missing(sent, [{"name": "x"}, *reversed(sent)])) == []
    assert list(missing(sent, [sent[0], {"name": "b", "value": "3"}])) == [
        "[1].value became '3' instead of '2'"
    ]
