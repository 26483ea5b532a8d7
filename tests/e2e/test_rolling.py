"""The short form of `python -m tests.e2e.rolling`: coordinators are replaced one after the other, and no member notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.rolling import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_j10_rolling_restarts_drop_no_heartbeat_and_cost_no_lease(tmp_path: Path) -> None:
    """Each coordinator ends by SIGTERM under steady heartbeats: what it accepted it answers, and then the other one serves."""
    members = 20
    verdict = run(tmp_path, seconds=9, every_s=2.5, members=members)
    assert verdict.restarts >= 2
    assert set(verdict.told) <= {"OK", "RETRY", "no connection"}, verdict.told
    assert verdict.told["OK"] > members * verdict.restarts
    assert (verdict.active, verdict.epochs[0]) == (members, verdict.epochs[1]), "nobody expired, nothing was shared out anew"
