"""What goes wrong, and how often. One tick is one second of simulated time.

Must be survived, alone and together: requests and answers lost, delayed, doubled, reordered; processes that crash, restart,
hang, leave, run twice under one id; coordinators that crash between any two commits, also right after one; commits whose
answer is lost (sent again, or never known); a store that is away, or falls back to an earlier state under another identity;
clocks that jump; shards that cannot be made or read; two coordinators that work on one group at once.

Outside of the budget: a jump of the store's clock while a correction round is open, or of less than the second that the
ticker tolerates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances, per tick unless it says otherwise."""

    lose: float = 0.08
    """per message"""
    double: float = 0.04
    """per request"""
    late: float = 0.08
    """per message: delayed by up to `delay_max` ticks, else by up to 2"""
    delay_max: int = 12
    twins: float = 0.1
    """per id and run: a second process runs under it"""
    slow_drains: float = 0.33
    """per process and run: a drain takes it 20 ticks, not 2"""
    crash_process: float = 0.006
    start_process: float = 0.08
    hang_process: float = 0.003
    leave: float = 0.004
    crash_node: float = 0.01
    crash_in_commit: float = 0.004
    """per commit: the coordinator dies before it, or right after it"""
    start_node: float = 0.2
    lost_answer: float = 0.03
    """per commit: the answer is lost, and the commit sent again"""
    unknown: float = 0.01
    """per commit: no answer at all; it took place, or not"""
    interleave: float = 0.1
    """per commit: another coordinator serves a request just before it"""
    store_away: float = 0.003
    fall_back: float = 0.0
    clock_jump: float = 0.0
    admin: float = 0.02
    delete: float = 0.0
    """the group is deleted by force, or made again, besides what `admin` does"""
    shard_fault: float = 0.02
    """per call"""


PLAIN = Faults()
VARIANTS = {
    "plain": PLAIN,
    "quiet network": replace(PLAIN, lose=0.0, double=0.0, late=0.0),
    "rough network": replace(PLAIN, lose=0.2, double=0.1, late=0.2),
    "fall back": replace(PLAIN, fall_back=0.003),
    "fall back often": replace(PLAIN, fall_back=0.012, admin=0.005),
    "fall back under twins": replace(
        PLAIN, twins=0.7, fall_back=0.02, lose=0.15, double=0.15, crash_process=0.02, hang_process=0.01, admin=0.01
    ),
    "fall back under drains": replace(
        PLAIN, twins=0.4, slow_drains=0.9, fall_back=0.01, crash_process=0.02, start_process=0.2, leave=0.01, admin=0.04
    ),
    "late leaves": replace(PLAIN, late=0.4, delay_max=20, leave=0.06, start_process=0.6, crash_process=0.02, double=0.2),
    "clock jumps": replace(PLAIN, clock_jump=0.01, lose=0.2),
    "crashing coordinators": replace(PLAIN, crash_node=0.04, crash_in_commit=0.05, unknown=0.05),
    "resharding": replace(PLAIN, admin=0.08, crash_in_commit=0.03),
    "coming and going": replace(
        PLAIN, double=0.3, late=0.3, delay_max=8, crash_process=0.03, start_process=0.2, hang_process=0.02, leave=0.02
    ),
    "twins": replace(PLAIN, twins=0.7, lose=0.2, crash_process=0.02, start_process=0.2, hang_process=0.01, interleave=0.3),
    "deletions": replace(PLAIN, delete=0.04, lose=0.2, hang_process=0.01, fall_back=0.003, crash_in_commit=0.02, interleave=0.3),
}
"""Each seed runs the variant of its number."""
