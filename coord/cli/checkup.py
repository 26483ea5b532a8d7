"""What `coord doctor` says, line by line, and what it says of the configuration itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from coord.config import Configuration, Problem, effective
from coord.config.checks import is_loopback
from coord.config.durations import show_duration
from coord.config.loading import DEFAULT_ORIGIN
from coord.config.secret import MASK

Status = Literal["OK", "WARN", "FAIL"]
HEARTBEATS_PER_LEASE: Final = 3
"""With fewer, one lost heartbeat and a slow one expire a member."""
ENVIRONMENT_ORIGIN: Final = "environment "


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was looked at: `check` for machines, `text` what was found, `advice` what to do about it."""

    check: str
    status: Status
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Line:
    """Give a line about what is fine."""
    return Line(check=check, status="OK", text=text)


def warn(check: str, text: str, advice: str) -> Line:
    """Give a line about a risk, or about what could not be looked at."""
    return Line(check=check, status="WARN", text=text, advice=advice)


def fail(check: str, text: str, advice: str) -> Line:
    """Give a line about what does not work, or is not safe."""
    return Line(check=check, status="FAIL", text=text, advice=advice)


def of_problems(problems: tuple[Problem, ...]) -> Iterator[Line]:
    """Give the reasons for which a start would be refused."""
    for problem in problems:
        yield fail("configuration", str(problem), "mend it: no coordinator starts with it")


def of_configuration(config: Configuration) -> Iterator[Line]:
    """Look at a configuration that a coordinator would start with."""
    about_api = [warning for warning in config.warnings if warning.key.startswith("api.")]
    others = [warning for warning in config.warnings if warning not in about_api]
    for warning in others:
        yield warn("configuration", str(warning), "change it, or live with it: every start says so")
    if not others:
        yield ok("configuration", "no problem, no warning")
    for warning in about_api:
        yield warn("credentials", str(warning), "set what it names to something of your own")
    if not about_api:
        yield ok("credentials", "no default password, and tokens are signed with a secret of their own")
    if not config.api.authenticate_member_api and not is_loopback(config.server.host):
        text = "heartbeats need no credentials: who reaches the port can join a group and be given shards"
        yield warn("credentials", text, "set api.authenticate-member-api, or keep the port to your members' network")
    yield from _secrets(config)
    yield from _timings(config)


def _secrets(config: Configuration) -> Iterator[Line]:
    """Tell where each secret came from, by its key; an argon2 hash may stand anywhere."""
    hashed = {f"api.users[{at}].password" for at, user in enumerate(config.api.users) if _is_hash(user.password.reveal())}
    if _is_hash(config.api.admin_password.reveal()):
        hashed.add("api.admin-password")
    found = [(row.key, row.origin) for row in effective(config) if MASK in str(row.value) and row.origin != DEFAULT_ORIGIN]
    literal = [key for key, origin in found if key not in hashed and _is_text_of_a_file(origin)]
    if literal:
        yield warn(
            "secrets",
            f"{', '.join(literal)}: written in the configuration file itself",
            "write ${NAME} there, or give it by an environment variable, a variable …_FILE or /run/secrets",
        )
    else:
        yield ok("secrets", "; ".join(f"{key} from {origin}" for key, origin in found) or "none is set")


def _is_hash(password: str) -> bool:
    return password.startswith("$argon2")


def _is_text_of_a_file(origin: str) -> bool:
    """Tell whether a value stands in the YAML file: then its origin is that file, and no variable, secret or option."""
    place = origin.removeprefix("redis.url from ")
    return Path(place).suffix in {".yaml", ".yml"} and not place.startswith(ENVIRONMENT_ORIGIN)


def _timings(config: Configuration) -> Iterator[Line]:
    lease_ms, interval_ms = config.member_lease_ttl_ms, config.heartbeat_interval_ms
    lease, interval = show_duration(lease_ms), show_duration(interval_ms)
    if lease_ms < HEARTBEATS_PER_LEASE * interval_ms:
        text = f"member-lease-ttl {lease} is less than three heartbeat-intervals ({interval}): a member expires easily"
        yield warn("timings", text, "lengthen the lease, or shorten the interval")
    elif config.store.type == "redis" and config.redis.timeout_ms * 2 > lease_ms:
        text = f"redis.timeout-ms {config.redis.timeout_ms} is more than half of member-lease-ttl ({lease})"
        yield warn("timings", f"{text}: one slow answer expires members", "shorten redis.timeout-ms")
    else:
        yield ok("timings", f"member-lease-ttl {lease}, heartbeat-interval {interval}")
