"""What comes from outside the file: environment variables, files they point to, mounted secrets, placeholders."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

from coord.config.keys import ITEM, KNOWN_NAMES, TREE, Leaf, leaves, nearest_known, uniform
from coord.config.layers import Layer, put
from coord.config.problems import Findings, Path, dotted
from coord.config.strangers import KOTLIN_ADVICE, is_kotlin_only, reason_never_in_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coord.config.rules import Rule

PREFIX: Final = "COORDINATOR_"
CONFIG_VARIABLE: Final = "COORDINATOR_CONFIG"
FILE_SUFFIX: Final = "_FILE"
SECRET_BYTES_MAX: Final = 65_536
PLACEHOLDER_DEPTH_MAX: Final = 16
SLIP_CUTOFF: Final = 0.85
"""How alike (0 to 1) an unknown variable must be to a known one to count as a slip of the pen."""

ALIASES: Final[Mapping[str, Path]] = {
    "REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD": ("api", "admin-password"),
    "REDIS_STREAM_COORDINATOR_TOKEN_SECRET": ("api", "token-secret"),
    "REDIS_STREAM_COORDINATOR_TOKEN_TTL": ("api", "token-ttl"),
    "REDIS_PASSWORD": ("redis", "password"),
    "REDIS_URL": ("redis", "url"),
    "REDIS_CLUSTER_NODES": ("redis", "cluster", "nodes"),
    "REDIS_SENTINEL_MASTER": ("redis", "sentinel", "master"),
    "REDIS_SENTINEL_NODES": ("redis", "sentinel", "nodes"),
    "WEB_CONCURRENCY": ("server", "workers"),
}
"""Names that other tools set, and the keys they mean. The `COORDINATOR_…` name of a key wins over its alias."""

_SERVICE_LINK = re.compile(r"COORDINATOR(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP)(_[A-Z]+)?)?)")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://.*")


def _patterns() -> list[tuple[re.Pattern[str], tuple[str, ...], Rule]]:
    patterns: list[tuple[re.Pattern[str], tuple[str, ...], Rule]] = []
    for path, leaf in leaves():
        form = "".join(r"(\d{1,5})" if part == ITEM else uniform(part) for part in path)
        patterns.append((re.compile(form), path, leaf.rule))
        if leaf.rule.is_list:
            patterns.append((re.compile(rf"{form}(\d{{1,5}})"), (*path, ITEM), leaf.rule))
    return patterns


_PATTERNS = _patterns()
_SECTIONS = tuple(
    re.sub("-", "_", child.name).upper() + "_" for child in TREE.children.values() if not isinstance(child.node, Leaf)
)
_FORMS = tuple(uniform(re.sub(r"[.\[\]]", "", name)) for name in KNOWN_NAMES)


def path_of_variable(name: str) -> Path | None:
    """Return the key that `COORDINATOR_API_USERS_0_USERNAME` (any relaxed form) or an alias sets, None if none."""
    if name in ALIASES:
        return ALIASES[name]
    if not name.startswith(PREFIX):
        return None
    form = uniform(name[len(PREFIX) :])
    for pattern, template, _ in _PATTERNS:
        if match := pattern.fullmatch(form):
            indices = iter(match.groups())
            return tuple(int(next(indices)) if part == ITEM else part for part in template)
    return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The process environment and the directory of mounted secrets, as one place to look names up."""

    variables: Mapping[str, str]
    secrets_directory: FilePath
    findings: Findings

    def lookup(self, name: str, key: str) -> str | None:
        """Return the value of a placeholder's name: variable, `NAME_FILE`, mounted secret; None when nowhere set."""
        value = self.variables.get(name)
        if value:
            return value
        pointed = self.variables.get(name + FILE_SUFFIX)
        if pointed:
            return self.read_secret(FilePath(pointed), key, name + FILE_SUFFIX)
        mounted = self.mounted_files().get(name)
        if mounted is not None:
            return self.read_secret(mounted, key, str(mounted))
        return value

    def mounted_files(self) -> dict[str, FilePath]:
        """Return the mounted secrets by the environment name that each file name stands for."""
        try:
            entries = sorted(self.secrets_directory.iterdir())
        except OSError:
            return {}
        return {
            re.sub(r"[.-]", "_", entry.name).upper(): entry for entry in entries if entry.name[:1] != "." and not entry.is_dir()
        }

    def read_secret(self, file: FilePath, key: str, told_by: str) -> str | None:
        """Return a file's text without the line end that editors add; a problem and None if there is none."""
        try:
            with file.open("rb") as opened:
                content = opened.read(SECRET_BYTES_MAX + 1)
            text = content.decode("utf-8").rstrip("\r\n")
        except OSError as error:
            self.findings.refuse(
                key, f"cannot read the file {str(file)!r} named by {told_by}: {error.strerror or 'no such file'}"
            )
            return None
        except UnicodeDecodeError:
            self.findings.refuse(key, f"the file {str(file)!r} named by {told_by} is not UTF-8 text")
            return None
        if len(content) > SECRET_BYTES_MAX:
            self.findings.refuse(key, f"the file {str(file)!r} named by {told_by} has more than {SECRET_BYTES_MAX} bytes")
            return None
        if not text.strip():
            self.findings.refuse(key, f"the file {str(file)!r} named by {told_by} is empty")
            return None
        return text


def environment_layers(surroundings: Surroundings) -> list[Layer]:
    """Return what the surroundings set, weakest first: mounted secrets, aliases, `COORDINATOR_…` variables."""
    mounted, aliases, own = Layer(), Layer(), Layer()
    for name, file in surroundings.mounted_files().items():
        if (path := path_of_variable(name)) is not None and (
            text := surroundings.read_secret(file, dotted(path), str(file))
        ) is not None:
            put(mounted, path, text, f"file {file}", surroundings.findings)
    for name in sorted(surroundings.variables):
        if name in ALIASES or name.removesuffix(FILE_SUFFIX) in ALIASES:
            _take(surroundings, aliases, name)
        elif name.startswith(PREFIX) and name != CONFIG_VARIABLE:
            _take(surroundings, own, name)
    return [mounted, aliases, own]


def _take(surroundings: Surroundings, layer: Layer, name: str) -> None:
    findings = surroundings.findings
    value = surroundings.variables[name]
    path = path_of_variable(name)
    base = name.removesuffix(FILE_SUFFIX)
    pointed = path_of_variable(base) if path is None and base != name else None
    if path is not None:
        if _SERVICE_LINK_VALUE.fullmatch(value) and name.endswith("_PORT"):
            findings.warn(dotted(path), f"{name} looks like a Kubernetes service link and is ignored (enableServiceLinks: false)")
            return
        put(layer, path, value, f"environment {name}", findings)
    elif pointed is not None:
        key = dotted(pointed)
        if not value.strip():
            return
        if surroundings.variables.get(base, "").strip():
            findings.refuse(key, f"both {base} and {name} are set; keep one")
            return
        text = surroundings.read_secret(FilePath(value), key, name)
        if text is not None:
            put(layer, pointed, text, f"file {value} ({name})", findings)
    elif not _is_service_link(name, value):
        _judge_unknown(name, findings)


def _is_service_link(name: str, value: str) -> bool:
    """Say whether Kubernetes made this variable for a service that is named after the coordinator."""
    if _SERVICE_LINK_VALUE.fullmatch(value):
        return _SERVICE_LINK.fullmatch(name) is not None
    return _SERVICE_LINK.fullmatch(name) is not None and not name.endswith("_PORT")


def _judge_unknown(name: str, findings: Findings) -> None:
    """Refuse what must never be configured and what looks like a slip; a stranger's variable only gets a warning."""
    form = uniform(name[len(PREFIX) :])
    near = nearest_known(".".join(name[len(PREFIX) :].lower().split("_")))
    hint = f"; the nearest known is {variable_of(near)}" if near else ""
    in_section = any(name.startswith(PREFIX + section) for section in _SECTIONS)
    if reason := reason_never_in_environment(form):
        findings.refuse(name, f"this environment variable cannot be: {reason}")
    elif is_kotlin_only(form):
        findings.warn(name, KOTLIN_ADVICE)
    elif in_section or difflib.get_close_matches(form, _FORMS, n=1, cutoff=SLIP_CUTOFF):
        findings.refuse(name, f"this environment variable sets no known key{hint}")
    else:
        findings.warn(name, f"this environment variable sets no known key and is ignored{hint}")


def variable_of(key: str) -> str:
    """Return the environment name of a key: `api.users[].username` is `COORDINATOR_API_USERS_0_USERNAME`."""
    return PREFIX + re.sub(r"[.-]", "_", key.replace(ITEM, "_0")).upper()


class PlaceholderError(ValueError):
    """A `${…}` that cannot be resolved; the text says why and holds no value."""


def resolve_placeholders(text: str, surroundings: Surroundings, key: str, *, blank_is_unset: bool) -> tuple[str, tuple[str, ...]]:
    """Replace each `${NAME}` and `${NAME:default}` (defaults may nest) and return the text and the names that were set.

    `blank_is_unset`: a variable set to nothing counts as not set, as in Redis settings. Raises PlaceholderError.
    """
    used: list[str] = []

    def resolve(part: str, depth: int) -> str:
        if depth > PLACEHOLDER_DEPTH_MAX:
            message = f"placeholders are nested more than {PLACEHOLDER_DEPTH_MAX} deep"
            raise PlaceholderError(message)
        done = ""
        while (start := part.find("${")) >= 0:
            end = _closing(part, start)
            name, colon, default = part[start + 2 : end].partition(":")
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name):
                message = "a placeholder is written ${NAME} or ${NAME:default}"
                raise PlaceholderError(message)
            value = surroundings.lookup(name, key)
            if value is not None and not (blank_is_unset and not value.strip()):
                used.append(name)
            elif colon:
                value = resolve(default, depth + 1)
            elif value is None:
                message = f"the environment variable {name} is not set and the placeholder has no default"
                raise PlaceholderError(message)
            done += part[:start] + value
            part = part[end + 1 :]
        return done + part

    return resolve(text, 0), tuple(used)


def _closing(text: str, start: int) -> int:
    depth = 0
    position = start
    while position < len(text):
        if text.startswith("${", position):
            depth += 1
            position += 2
            continue
        if text[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    message = "a placeholder ${ is not closed"
    raise PlaceholderError(message)
