"""Decides which snapshots are kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from windlass.spec.backup import Keep


def kept(moments: Iterable[float], keep: Keep) -> set[float]:
    """Return the times of the snapshots to keep.

    Days, weeks (from Monday) and months are in UTC, and only those with snapshots count, newest first: a
    machine that was off for a month loses no snapshot by it.
    """
    newest_first = sorted(set(moments), reverse=True)
    stays = set(newest_first[: keep.last])
    for count, form in ((keep.daily, "%Y-%m-%d"), (keep.weekly, "%G-%V"), (keep.monthly, "%Y-%m")):
        seen: list[str] = []
        for moment in newest_first:
            period = datetime.fromtimestamp(moment, UTC).strftime(form)
            if period not in seen and len(seen) < count:
                seen.append(period)
                stays.add(moment)
    return stays
