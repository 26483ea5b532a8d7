"""Soft reports: what a heartbeat says beside the record. Kept beside the lease, may be lost."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from coord.store.base import Soft
from coord.wire import ShardProgress


class SoftReport(Struct, rename="camel", frozen=True, kw_only=True):
    """What a heartbeat says beside the record: free workers, progress by shard."""

    available_concurrency: int | None = None
    shard_progress: tuple[ShardProgress, ...] = ()


NO_REPORT: Final = SoftReport()


def report_of(soft: Soft, member_id: str) -> SoftReport:
    """Give a member's latest report; an unreadable one is none."""
    raw = soft.reports.get(member_id)
    if raw is None:
        return NO_REPORT
    try:
        return msgspec.json.decode(raw, type=SoftReport)
    except msgspec.MsgspecError:
        return NO_REPORT
