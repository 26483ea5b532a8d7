"""Run seeds until one breaks; started in a copy of the tree, by `tests.mutants.running`. Each line of stdout is JSON."""

from __future__ import annotations

import argparse
import json
import traceback

from tests.simulation.logs import end_at_surprises
from tests.simulation.simulation import Simulation


def main() -> None:
    """Tell each seed as it ends; the first that breaks is the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, required=True)
    parser.add_argument("--ticks", type=int, required=True)
    parser.add_argument("--variant")
    asked = parser.parse_args()
    end_at_surprises()
    for seed in range(asked.seeds):
        try:
            outcome = Simulation(seed, variant=asked.variant).run(asked.ticks)
        except Exception as error:  # noqa: BLE001  a mutant may break anywhere
            where = traceback.extract_tb(error.__traceback__)[-1]
            say(seed, "surprise", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}")
            return
        say(seed, outcome.checker, outcome.violation)
        if outcome.checker is not None:
            return


def say(seed: int, checker: str | None, violation: str | None) -> None:
    """Write one line."""
    print(json.dumps({"seed": seed, "checker": checker, "violation": violation}), flush=True)


if __name__ == "__main__":
    main()
