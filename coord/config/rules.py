"""What a value may be: one rule a kind, which reads what people write and shows what is in force.

A rule hangs on its key as `Annotated[int, duration("meaning", …)]`; `parse` raises ValueError for what is not allowed.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Meta

from coord.config.durations import DAY_MS, SECOND_MS, is_duration, parse_duration, show_duration
from coord.config.secret import Secret, SecretUrl

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT_LENGTH_MAX: Final = 4096
PORT_MAX: Final = 65_535

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ENTRIES = re.compile(r"([0-9][0-9,_]{0,14})\s+entries")
_UNLIMITED: Final = "unlimited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How to read a key's value, what is allowed (a noun phrase for errors), and how to show it.

    `is_text`: a blank stands for itself; for every other kind a blank means "not set".
    `default_text`: the default as the table of keys shows it, where the plain value would mislead.
    """

    allowed: str
    parse: Callable[[object], object]
    show: Callable[[object], object] = lambda value: value
    is_text: bool = False
    is_secret: bool = False
    is_list: bool = False
    default_text: str = ""


def rule_of(meta: Meta) -> Rule:
    """Return the rule that one of the functions below put on a key."""
    rule = (meta.extra or {}).get("rule")
    if not isinstance(rule, Rule):
        message = f"no rule on the key: {meta.description}"
        raise TypeError(message)
    return rule


def _key(meaning: str, rule: Rule) -> Meta:
    return Meta(description=meaning, extra={"rule": rule})


def many(meta: Meta) -> Meta:
    """Make a rule for one value the rule for each entry of a list."""
    return _key(meta.description or "", replace(rule_of(meta), is_list=True))


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError(value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, float):
        raise TypeError(value)
    try:
        return msgspec.convert(value.strip() if isinstance(value, str) else value, int, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(value) from error


def flag(meaning: str) -> Meta:
    """Make the rule for `true` or `false`."""

    def parse(value: object) -> object:
        text = value.strip().lower() if isinstance(value, str) else value
        if isinstance(text, bool):
            return text
        if text in {"true", "yes", "on"}:
            return True
        if text in {"false", "no", "off"}:
            return False
        raise ValueError(value)

    return _key(meaning, Rule(allowed="true or false", parse=parse))


def whole(meaning: str, *, low: int, high: int, default_text: str = "") -> Meta:
    """Make the rule for a whole number from `low` to `high`."""
    return _key(
        meaning,
        Rule(
            allowed=f"a whole number from {low} to {high}",
            parse=lambda value: _within(_whole(value), low, high),
            default_text=default_text,
        ),
    )


def duration(meaning: str, *, low_ms: int, high_ms: int) -> Meta:
    """Make the rule for a time with a unit; kept as whole milliseconds."""
    return _key(
        meaning,
        Rule(
            allowed=f"a duration from {show_duration(low_ms)} to {show_duration(high_ms)}, such as 500ms, 3s, 1m, 2h or 7d",
            parse=lambda value: _within(parse_duration(value), low_ms, high_ms),
            show=lambda value: show_duration(value) if isinstance(value, int) else value,
        ),
    )


def milliseconds(meaning: str, *, low: int, high: int) -> Meta:
    """Make the rule for a `…-ms` key: a number of milliseconds; a duration with a unit is understood too."""

    def parse(value: object) -> object:
        if isinstance(value, str) and is_duration(value):
            return _within(parse_duration(value), low, high)
        return _within(_whole(value), low, high)

    return _key(meaning, Rule(allowed=f"a number of milliseconds from {low} to {high}", parse=parse))


def _clean_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > TEXT_LENGTH_MAX or _CONTROL.search(value):
        raise ValueError(value)
    return value


def text(meaning: str, *, pattern: str = r".*", allowed: str = "text on one line", default_text: str = "") -> Meta:
    """Make the rule for a text that `pattern` matches in full."""
    expression = re.compile(pattern)

    def parse(value: object) -> object:
        cleaned = _clean_text(value)
        if not expression.fullmatch(cleaned):
            raise ValueError(value)
        return cleaned

    return _key(meaning, Rule(allowed=allowed, parse=parse, is_text=True, default_text=default_text))


def choice(meaning: str, *options: str, aliases: dict[str, str] | None = None) -> Meta:
    """Make the rule for one of `options`; upper and lower case are the same."""
    spellings = {option.lower(): option for option in options} | (aliases or {})

    def parse(value: object) -> object:
        plain = not isinstance(value, bool) and isinstance(value, str | int)
        found = spellings.get(str(value).strip().lower()) if plain else None
        if found is None:
            raise ValueError(value)
        return found

    return _key(meaning, Rule(allowed=f"one of {', '.join(options)}", parse=parse))


def secret(meaning: str, *, default_text: str = "") -> Meta:
    """Make the rule for a text that is never shown."""
    return _key(
        meaning,
        Rule(
            allowed="text on one line",
            parse=lambda value: Secret(_clean_text(value)),
            show=str,
            is_text=True,
            is_secret=True,
            default_text=default_text,
        ),
    )


def secret_url(meaning: str, *, schemes: tuple[str, ...] = ()) -> Meta:
    """Make the rule for a URL that may hold credentials; `schemes` empty: any."""

    def parse(value: object) -> object:
        cleaned = _clean_text(value).strip()
        scheme, separator, rest = cleaned.partition("://")
        if not separator or not rest.strip("/ ") or (schemes and scheme.lower() not in schemes):
            raise ValueError(value)
        return SecretUrl(cleaned)

    allowed = f"a URL that starts with {' or '.join(f'{scheme}://' for scheme in schemes)}" if schemes else "a URL, scheme://…"
    return _key(meaning, Rule(allowed=allowed, parse=parse, show=str, is_secret=True))


def database_url(meaning: str) -> Meta:
    """Make the rule for the URL of a SQL database, which is looked into only once its kind of store is asked for."""

    def parse(value: object) -> object:
        cleaned = _clean_text(value).strip()
        if not re.match(r"[A-Za-z][A-Za-z0-9+]*:", cleaned):
            raise ValueError(value)
        return SecretUrl(cleaned)

    return _key(meaning, Rule(allowed="a URL such as jdbc:postgresql://host/database", parse=parse, show=str, is_secret=True))


def split_node(address: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets) or raise ValueError."""
    host, separator, port = address.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not separator
        or not host
        or not re.fullmatch("[0-9]{1,5}", port)
        or (":" in host and not bracketed)
        or re.search(r"[\s/@]", host)
    ):
        raise ValueError(address)
    return (host[1:-1] if bracketed else host), _within(int(port), 1, PORT_MAX)


def node(meaning: str) -> Meta:
    """Make the rule for `host:port`."""

    def parse(value: object) -> object:
        cleaned = _clean_text(value).strip()
        split_node(cleaned)
        return cleaned

    return _key(meaning, Rule(allowed="host:port", parse=parse))


def node_pair(meaning: str) -> Meta:
    """Make the rule for `host:port=host:port`: the address as the server tells it, and as it is reached from here."""

    def parse(value: object) -> object:
        told, separator, reached = _clean_text(value).partition("=")
        if not separator:
            raise ValueError(value)
        split_node(told)
        split_node(reached)
        return f"{told.strip()}={reached.strip()}"

    return _key(meaning, Rule(allowed="host:port=host:port (as told = as reached)", parse=parse))


def network(meaning: str) -> Meta:
    """Make the rule for an IP address or a network in CIDR form."""

    def parse(value: object) -> object:
        return str(ipaddress.ip_network(_clean_text(value).strip(), strict=False))

    return _key(meaning, Rule(allowed="an IP address or a network such as 10.0.0.0/8", parse=parse))


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept: entries younger than `age_ms` and at most `entries_max`; None: no such limit."""

    age_ms: int | None = None
    entries_max: int | None = None

    def __str__(self) -> str:
        parts = [show_duration(self.age_ms)] if self.age_ms is not None else []
        parts += [f"{self.entries_max} entries"] if self.entries_max is not None else []
        return " or ".join(parts) or _UNLIMITED


def _parse_retention(value: object, entries_low: int) -> Retention:
    words = _clean_text(value).strip()
    if words == _UNLIMITED:
        return Retention()
    age_ms: int | None = None
    entries_max: int | None = None
    for part in re.split(r"\s+or\s+", words):
        counted = _ENTRIES.fullmatch(part)
        if counted and entries_max is None:
            entries_max = _within(int(re.sub("[,_]", "", counted[1])), entries_low, 10**12)
        elif not counted and age_ms is None:
            age_ms = _within(parse_duration(part), SECOND_MS, 3650 * DAY_MS)
        else:
            raise ValueError(value)
    return Retention(age_ms=age_ms, entries_max=entries_max)


def retention(meaning: str, *, entries_low: int) -> Meta:
    """Make the rule for `30d`, `1000000 entries`, both joined by `or` (whichever is reached first), or `unlimited`."""
    return _key(
        meaning,
        Rule(
            allowed=f"an age (30d), a count of at least {entries_low} (1000000 entries), both joined by `or`, or {_UNLIMITED}",
            parse=lambda value: _parse_retention(value, entries_low),
            show=str,
        ),
    )
