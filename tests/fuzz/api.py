"""Requests generated from the API description, right and wrong ones, by every kind of caller; each answer is held to it.

Names that exist are put in the place of generated ones most of the time, so that requests get past the first look-up; the
world is made anew now and then, so that it neither fills up nor stays empty.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.http.face import OLD_SECRET, PASSWORDS, SECRET, USERS, Face, basic, configuration, heartbeat, make_face

BATCH: Final = 25
"""Requests that are generated in one go for one operation."""
BATCHES_A_WORLD: Final = 40
LIMIT: Final = "    rate-limit: {enabled: true, admin-mutations-per-minute: 200}\n"
WHO: Final = {"requestedBy": "fuzz", "reason": "fuzz"}
CALLERS: Final = ("legacy", "legacy", "legacy", "token", "writer", "reader", "member", "scoped", "nobody", "wrong", None)
IN_THE_DESCRIPTION: Final = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


class World:
    """An app with streams, groups, members and a resharding under way; requests count against a limit."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = USERS.format(secret=SECRET, old=OLD_SECRET, members="true") + LIMIT
        self.face: Face = make_face(configuration(folder, text=text))
        self.face.make_stream()
        self.face.make_group()
        self.face.make_stream("orders-lone")
        self.face.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(), user="member")
        self.names = {
            "streamPrefix": ("orders", "orders", "orders-lone"),
            "consumerGroup": ("g", "g", "h"),
            "memberId": ("m", "other"),
            "reshardingId": (self.face.scale(6), "noop"),
            "name": ("g", "foreign"),
        }
        self.schema = schemathesis.openapi.from_wsgi("/v3/api-docs", self.face.app)
        token = self.face.ask("POST", "/auth/login", user="legacy").json["accessToken"]
        self.bearer = {"Authorization": f"Bearer {token}"}

    def strategies(self) -> Iterator[tuple[str, strategies.SearchStrategy[Case[Any]]]]:
        """Give for each operation how its right requests are generated, and how its wrong ones."""
        for found in self.schema.get_all_operations():
            assert isinstance(found, Ok), f"the description cannot be read: {found}"
            operation = found.ok()
            takes_input = bool(operation.body or operation.query or operation.path_parameters)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if takes_input else (GenerationMode.POSITIVE,):
                yield operation.label, operation.as_strategy(generation_mode=mode)

    def headers(self, caller: str | None) -> dict[str, str]:
        """Give what a caller proves itself with."""
        if caller is None:
            return {}
        if caller == "token":
            return self.bearer
        return basic("reader", "wrong") if caller == "wrong" else basic(caller, PASSWORDS[caller])


def fuzz(folder: Path, *, cases: int, seed: int, told: Callable[[str], None] = lambda line: None) -> Counter[int]:
    """Send so many requests; gives how often each status was answered. Raises AssertionError for the first wrong answer."""
    statuses: Counter[int] = Counter()
    batches = 0
    while statuses.total() < cases:
        world = World(folder / str(batches))
        each = tuple(world.strategies())
        for _ in range(BATCHES_A_WORLD):
            label, strategy = each[batches % len(each)]
            _run(world, label, strategy, statuses, seed=seed + batches, most=min(BATCH, cases - statuses.total()))
            batches += 1
            if statuses.total() >= cases:
                break
        told(f"{statuses.total()} of {cases}: {dict(sorted(statuses.items()))}")
    return statuses


def _run(
    world: World, label: str, strategy: strategies.SearchStrategy[Case[Any]], statuses: Counter[int], *, seed: int, most: int
) -> None:
    """Send a batch of requests of one operation."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=most,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(
        case=strategy,
        caller=strategies.sampled_from(CALLERS),
        key=strategies.sampled_from((None, None, "one", "two", "", "x" * 300)),
        known=strategies.integers(0, 3),
        pick=strategies.integers(0, 5),
    )
    def send(case: Case[Any], caller: str | None, key: str | None, known: int, pick: int) -> None:
        if known and isinstance(case.path_parameters, dict):
            case.path_parameters = {
                name: world.names[name][pick % len(world.names[name])] if name in world.names else value
                for name, value in case.path_parameters.items()
            }
        headers: dict[str, Any] = world.headers(caller) | ({} if key is None else {"Idempotency-Key": key})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # generated bodies are odd on purpose
            response = case.call(headers=headers)
            statuses[response.status_code] += 1
            checks = [*IN_THE_DESCRIPTION, *([not_a_server_error] if response.status_code != 503 else [])]
            case.validate_response(response, checks=checks)

    try:
        send()
    except Exception as error:
        raise AssertionError(f"{label}: {error} (repeat with --seed {seed})") from error
