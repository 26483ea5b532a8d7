"""`python -m tests.chaos --seconds 120 --port P`: exit 1 when a promise was broken, or the run was not hard enough."""

from __future__ import annotations

import argparse
import sys

from tests.chaos.run import Plan, run


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--port", type=int, help="port of the first coordinator; the second takes the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20, help="fewer than this many kills is a failure")
    parser.add_argument("--changes", type=int, default=2_000, help="fewer than this many membership changes is a failure")
    parser.add_argument(
        "--store", choices=["redis", "postgresql", "mariadb"], default="redis", help="where logs and metadata are"
    )
    parser.add_argument("--database-every", type=int, default=0, help="kill the database too, every so many kills")
    asked = parser.parse_args()
    plan = Plan(
        seconds=asked.seconds,
        port=asked.port,
        seed=asked.seed,
        kills_min=asked.kills,
        changes_min=asked.changes,
        store=asked.store,
        database_every=asked.database_every,
    )
    verdict = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    print(
        f"{verdict.kills} kills, {verdict.changes} membership changes, {verdict.tenancies} tenancies, "
        f"{verdict.acknowledged} acknowledged changes looked up, answers {verdict.statuses}"
    )
    for problem in verdict.problems[:20]:
        print(f"PROBLEM {problem}")
    print("held" if not verdict.problems else f"{len(verdict.problems)} problems")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
