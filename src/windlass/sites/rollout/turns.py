"""Decides which sites take the next step, and when a rollout is over. Pure."""

from __future__ import annotations

from dataclasses import replace

from windlass.sites.rollout.rollout_record import OVER, UNTOUCHED, SitesRolloutRecord, SiteState


def active(record: SitesRolloutRecord, at_once: int) -> list[str]:
    """Return the sites that may take a step: the first site alone, then `at_once` sites.

    Once the rollout fails no site starts; sites in progress, or rolling back, are completed.
    """
    open_ = [site for site in record.order if record.sites[site].phase not in OVER]
    if record.failing:
        return [site for site in open_ if record.sites[site].phase not in UNTOUCHED][:at_once]
    is_first = record.sites[record.order[0]].phase != "done"
    return open_[: 1 if is_first else at_once]


def failed(record: SitesRolloutRecord, site: str, why: str, now: float) -> SitesRolloutRecord:
    """Roll the whole rollout back because of one site.

    Untouched sites stay so; with `back`, finished sites are rolled back, too.
    """
    if record.failing:
        return record
    sites = dict(record.sites)
    for name, turn in record.sites.items():
        if turn.phase in UNTOUCHED:
            sites[name] = turn.to("waiting", now)
        elif turn.phase == "settling" or (turn.phase == "done" and record.back):
            sites[name] = turn.to("undoing", now, why=f"{site} failed" if name != site else why)
    return replace(record, failing=f"{site}: {why}", sites=sites)


def ended(record: SitesRolloutRecord, at_once: int) -> SitesRolloutRecord:
    """Return the record with its final state, if the rollout is over."""
    if record.failing and not active(record, at_once):
        return replace(record, state="failed", reason=record.failing)
    if not record.failing and all(turn.phase == "done" for turn in record.sites.values()):
        return replace(record, state="done", reason="")
    return record


def resumed(record: SitesRolloutRecord, now: float) -> SitesRolloutRecord:
    """Resume a record: waits start again, so the time in between does not count.

    An untouched site starts from the beginning: it may have got its clients back.
    """
    sites = {name: _again(turn, now) for name, turn in record.sites.items()}
    return replace(record, state="under way", reason="", sites=sites)


def _again(turn: SiteState, now: float) -> SiteState:
    if turn.phase in OVER:
        return turn
    if turn.phase in UNTOUCHED:
        return turn.to("waiting", now)
    return replace(turn, since_s=now, quiet_s=None, good_s=None)
