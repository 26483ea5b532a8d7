"""A Kotlin coordinator's keys, as the fixtures have them, in a real Redis."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kotlin"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
STABLE = "redis-stream:coord:{orders:orders-consumer}:metadata"
Change = Callable[[dict[str, Any]], None]


def keys_of(name: str) -> list[dict[str, Any]]:
    """Read a fixture: a list of keys with type and value."""
    loaded: list[dict[str, Any]] = json.loads((FIXTURES / f"{name}.json").read_text())
    return loaded


def seed(url: str, name: str, change: Change | None = None) -> None:
    """Write a fixture's keys; `change` may alter the aggregate of its group."""
    with redis.Redis.from_url(url) as client:
        for key in keys_of(name):
            value = key["value"]
            if key["type"] == "set":
                client.sadd(key["key"], *value)
            elif key["type"] == "string":
                client.set(key["key"], changed(value, change))
            else:
                is_group = key["key"].endswith("}:metadata")
                text = changed(value["aggregate"], change) if is_group else value["aggregate"]
                client.hset(key["key"], mapping={**value, "aggregate": text})


def changed(text: str, change: Change | None) -> str:
    if change is None:
        return text
    told = json.loads(text)
    change(told)
    return json.dumps(told, separators=(",", ":"))
