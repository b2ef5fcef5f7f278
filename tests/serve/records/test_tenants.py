"""Tenants: limits and settings of their own, and no key left behind."""

from __future__ import annotations

import pytest

from windlass.serve.records.audit_log import Actor, newest_records
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.tenants import Tenants, TenantSettings
from windlass.spec.errors import AskedWrongly, BadInput, InUse, NotFound
from windlass.spec.limits import Limits
from windlass.spec.tenancy import DEFAULT, Allowance, TenantResourceQuota
from windlass.store.database import Database


@pytest.fixture
def tenants(state: Database) -> Tenants:
    return Tenants(state)


def test_there_is_a_tenant_from_the_start(tenants: Tenants) -> None:
    assert [tenant.name for tenant in tenants.list()] == [DEFAULT]


def test_a_tenant_is_found_as_it_was_made_and_changed(tenants: Tenants, me: Actor) -> None:
    made = tenants.make("acme", me, limits=Limits(concurrent=2), settings=TenantSettings(shared_prefix=True))
    assert made == tenants.find("acme") == tenants.get("acme")
    changed = tenants.set("acme", me, limits=Limits(tokens_per_day=9))
    assert (changed.limits, changed.settings) == (
        Limits(tokens_per_day=9),
        TenantSettings(shared_prefix=True),
    )
    assert tenants.set("acme", me, limits=Limits()).limits is None
    assert tenants.find("acme") == tenants.get("acme")
    assert tenants.find("nobody") is None


def test_a_tenant_with_a_key_in_use_stays(tenants: Tenants, state: Database, me: Actor) -> None:
    tenants.make("acme", me)
    keys = ApiKeys(state)
    keys.make("ada", me, tenant="acme")
    with pytest.raises(InUse, match="still has keys: ada"):
        tenants.remove("acme", me)
    keys.revoke("ada", me)
    tenants.remove("acme", me)
    assert tenants.find("acme") is None
    assert keys.list() == ()
    with pytest.raises(NotFound):
        keys.make("bob", me, tenant="acme")


def test_what_cannot_be_is_refused(tenants: Tenants, me: Actor) -> None:
    tenants.make("acme", me)
    with pytest.raises(InUse):
        tenants.make("acme", me)
    with pytest.raises(BadInput):
        tenants.make("A c m e", me)
    with pytest.raises(NotFound, match="did you mean 'acme'"):
        tenants.set("acne", me, suspended=True)
    with pytest.raises(AskedWrongly, match="cannot be removed"):
        tenants.remove(DEFAULT, me)


def test_every_change_is_written_down(tenants: Tenants, state: Database, me: Actor) -> None:
    tenants.make("acme", me)
    tenants.set("acme", me, suspended=True)
    tenants.remove("acme", me)
    told = [(record.action, record.target, record.note) for record in newest_records(state, 9)]
    assert told == [
        ("tenant.make", "acme", ""),
        ("tenant.set", "acme", "suspended"),
        ("tenant.remove", "acme", ""),
    ]


def test_what_a_tenant_is_allowed_changes_by_what_it_was(tenants: Tenants, me: Actor) -> None:
    tenants.make("acme", me, allowance=Allowance(quota=TenantResourceQuota(jobs=4)))
    changed = tenants.set("acme", me, allow=lambda old: old.model_copy(update={"weight": 2.0}))
    assert (changed.allowance.quota.jobs, changed.allowance.weight) == (4, 2.0)
    assert tenants.find("acme") == changed
    assert tenants.set("acme", me, suspended=True).allowance == changed.allowance
    assert tenants.get("default").allowance == Allowance()


def test_a_tenants_number_is_never_anothers(tenants: Tenants, me: Actor) -> None:
    numbers = [tenants.number(name) for name in ("acme", "rival", "acme")]
    assert numbers == [1, 2, 1]
    tenants.make("rival", me)
    tenants.remove("rival", me)
    assert (tenants.number("third"), tenants.number("rival")) == (3, 2)
