"""From all sources to one `Configuration`, or to the whole list of what is wrong."""

from __future__ import annotations

import os
import reprlib
import socket
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import msgspec
import structlog

from coord.config.checks import check
from coord.config.document import file_layer, find_file, override_layer
from coord.config.environment import Surroundings, environment_layers
from coord.config.keys import TREE, Branch, Leaf, Listing, leaf_at
from coord.config.layers import Given, Layer, merge
from coord.config.problems import ConfigurationError, Findings, Path, dotted
from coord.config.rules import PORT_MAX, Rule
from coord.config.schema import WORKERS_MAX, Configuration, Section
from coord.config.secret import MASK, Secret, SecretUrl
from coord.config.strangers import UNBUILT

SECRETS_DIRECTORY: Final = FilePath("/run/secrets")
DEFAULT_ORIGIN: Final = "default"
OVERRIDE_ORIGIN: Final = "command line"
_HOST_NAME_LENGTH_MAX: Final = 255
_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 100, 100


def load(
    file: FilePath | str | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    directory: FilePath | None = None,
    secrets_directory: FilePath = SECRETS_DIRECTORY,
) -> Configuration:
    """Return the effective configuration: overrides before environment before file before default.

    `file`: what `--config` names; else `$COORDINATOR_CONFIG`, else `coordinator.yaml` in `directory` (the working
    directory) if it is there. `overrides`: by dotted key, `{"server.port": 8081}`. `environ`: default the process's.
    Raises ConfigurationError with every problem found. The result's `warnings` are for the log of the start.
    """
    findings = Findings()
    surroundings = Surroundings(os.environ if environ is None else environ, secrets_directory, findings)
    found = find_file(None if file is None else FilePath(file), surroundings, directory or FilePath.cwd())
    layers = [] if found is None else [file_layer(found, surroundings)]
    layers += environment_layers(surroundings)
    layers.append(override_layer(overrides or {}, findings, OVERRIDE_ORIGIN))
    merged = merge(layers)
    values = _converted(merged, findings)
    origins = {dotted(path): given.origin for path, given in merged.values.items()}
    _take_computed_defaults(values, origins, findings)
    _take_url(values, origins, findings)
    configuration = cast("Configuration", _Build(values, merged.whole_lists, origins, findings).section(TREE, ()))
    check(configuration, findings)
    _judge_unbuilt(configuration, findings)
    if findings.problems:
        raise ConfigurationError(tuple(findings.problems), tuple(findings.warnings))
    return msgspec.structs.replace(configuration, origins=origins, warnings=tuple(findings.warnings))


def log_warnings(configuration: Configuration) -> None:
    """Log what deserves a line at every start, one warning each."""
    logger = structlog.get_logger(__name__)
    for warning in configuration.warnings:
        logger.warning("configuration warning", key=warning.key, detail=warning.message)


def _converted(merged: Layer, findings: Findings) -> dict[Path, object]:
    values: dict[Path, object] = {}
    for path, given in merged.values.items():
        rule = leaf_at(dotted(path)).rule
        try:
            values[path] = rule.parse(given.value)
        except (ValueError, TypeError):
            findings.refuse(dotted(path), _bad_value(rule, given))
    return values


def _bad_value(rule: Rule, given: Given) -> str:
    shown = MASK if rule.is_secret else _SHORT.repr(given.value)
    hint = ""
    if (rule.is_text or rule.is_secret) and not isinstance(given.value, str | Mapping | list):
        hint = "; YAML takes this for a number, a date or a truth value: write it in quotes"
    return f"{shown} is not allowed, it must be {rule.allowed}{hint}; from {given.origin}"


def _take_computed_defaults(values: dict[Path, object], origins: dict[str, str], findings: Findings) -> None:
    """Fill in what depends on the machine: the host name, and one worker a core unless state lives in one process."""
    if ("id",) not in values and "id" not in findings.broken:
        values["id",] = "".join(socket.gethostname().split())[:_HOST_NAME_LENGTH_MAX] or "coordinator"
        origins["id"] = "default (host name)"
    if ("server", "workers") not in values and "server.workers" not in findings.broken:
        in_memory = values.get(("store", "type")) == "memory"
        values["server", "workers"] = 1 if in_memory else cores()
        origins["server.workers"] = "default (memory store)" if in_memory else "default (cores)"


def cores() -> int:
    """Return how many processors this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, WORKERS_MAX)


def _take_url(values: dict[Path, object], origins: dict[str, str], findings: Findings) -> None:
    """Let what `redis.url` says stand in host, port, database, username, password and ssl."""
    url = values.get(("redis", "url"))
    if not isinstance(url, SecretUrl) or not url:
        return
    try:
        told = _url_parts(url.reveal())
    except ValueError as error:
        findings.refuse("redis.url", f"{url} is not allowed: {error}; from {origins['redis.url']}")
        return
    for name, value in told.items():
        values["redis", name] = value
        origins[f"redis.{name}"] = f"redis.url from {origins['redis.url']}"


def _url_parts(url: str) -> dict[str, object]:
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        message = f"host or port cannot be read, the port must be from 1 to {PORT_MAX}"
        raise ValueError(message) from None
    database = parts.path.strip("/")
    if not host:
        message = "it names no host"
        raise ValueError(message)
    if port == 0:
        message = f"the port must be from 1 to {PORT_MAX}"
        raise ValueError(message)
    if parts.query or parts.fragment:
        message = "what follows ? or # is not read, write it as keys under `redis`; in a password they are written %3F and %23"
        raise ValueError(message)
    if database and not (database.isascii() and database.isdecimal() and len(database) < len(str(PORT_MAX)) + 1):
        message = "after the host comes nothing or the number of the database"
        raise ValueError(message)
    told: dict[str, object] = {"host": host}
    told |= {"port": port} if port else {}
    told |= {"database": int(database)} if database else {}
    told |= {"username": unquote(parts.username)} if parts.username else {}
    told |= {"password": Secret(unquote(parts.password))} if parts.password else {}
    told |= {"ssl": True} if parts.scheme.lower() == "rediss" else {}
    return told


class _Build:
    """Makes the structs from the values, and notes where each default came from."""

    def __init__(
        self, values: Mapping[Path, object], whole_lists: Mapping[Path, str], origins: dict[str, str], findings: Findings
    ) -> None:
        self.values = values
        self.whole_lists = whole_lists
        self.origins = origins
        self.findings = findings

    def section(self, branch: Branch, path: Path) -> Section:
        """Return the struct of a section, defaults where nothing is given."""
        fields: dict[str, object] = {}
        for child in branch.children.values():
            place = (*path, child.name)
            if isinstance(child.node, Branch):
                fields[child.attribute] = self.section(child.node, place)
            elif isinstance(child.node, Listing):
                fields[child.attribute] = tuple(self.section(child.node.item, (*place, index)) for index in self.indices(place))
            else:
                fields[child.attribute] = self.value(child.node, place)
        return branch.type(**fields)

    def value(self, leaf: Leaf, place: Path) -> object:
        """Return the value of a key."""
        if not leaf.rule.is_list:
            self.origins.setdefault(dotted(place), DEFAULT_ORIGIN)
            return self.values.get(place, leaf.default)
        indices = self.indices(place)
        if not indices and place not in self.whole_lists:
            self.origins.setdefault(dotted(place), DEFAULT_ORIGIN)
            return leaf.default
        self.origins[dotted(place)] = self.whole_lists.get(place) or self.origins.get(dotted((*place, 0)), DEFAULT_ORIGIN)
        return tuple(self.values[(*place, index)] for index in indices if (*place, index) in self.values)

    def indices(self, place: Path) -> list[int]:
        """Return 0 to the highest index that is given; a hole is a problem, except where an entry was refused."""
        depth = len(place)
        given = {path[depth] for path in self.values if path[:depth] == place and len(path) > depth}
        broken = f"{dotted(place)}["
        present = {index for index in given if isinstance(index, int)}
        if present and not any(key.startswith(broken) for key in self.findings.broken):
            missing = next((index for index in range(max(present)) if index not in present), None)
            if missing is not None:
                self.findings.refuse(f"{dotted(place)}[{missing}]", f"it is missing, although [{max(present)}] is given")
        return sorted(present)


def _judge_unbuilt(configuration: Configuration, findings: Findings) -> None:
    """Warn of keys whose feature this release lacks."""
    for key in UNBUILT:
        if value_of(configuration, key) != leaf_at(key).default:
            findings.warn(key, "not implemented in this release, the value has no effect")


def value_of(configuration: Configuration, key: str) -> object:
    """Return the value of a key without indices, such as `server.graceful-timeout`."""
    node: object = configuration
    branch = TREE
    for part in key.split("."):
        child = next(child for child in branch.children.values() if child.name == part)
        node = getattr(node, child.attribute)
        if isinstance(child.node, Branch):
            branch = child.node
    return node
