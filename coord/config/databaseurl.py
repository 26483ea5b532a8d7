"""URLs of SQL databases, as Java writes them (`jdbc:postgresql://…`) and as SQLAlchemy does (`postgresql+psycopg://…`).

What is wrong with one is told without showing any value of it: user, password and query may stand anywhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from coord.config.databasetls import take_mysql, take_postgresql
from coord.config.rules import split_node
from coord.config.secret import Secret

Kind = Literal["postgresql", "mysql", "sqlite"]

_SCHEMES: Final[dict[str, Kind]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "postgresql+psycopg": "postgresql",
    "mariadb": "mysql",
    "mysql": "mysql",
    "mariadb+pymysql": "mysql",
    "mysql+pymysql": "mysql",
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
}
_KNOWN: Final = "postgresql, mariadb, mysql or sqlite"
_OPTIONS: Final[dict[Kind, dict[str, str]]] = {
    "postgresql": {
        name.lower(): option
        for option, names in {
            "sslrootcert": "sslrootcert",
            "sslcert": "sslcert",
            "sslkey": "sslkey",
            "sslcrl": "sslcrl",
            "channel_binding": "channel_binding channelBinding",
            "gssencmode": "gssencmode gssEncMode",
            "application_name": "application_name ApplicationName",
            "target_session_attrs": "target_session_attrs",
            "schema": "currentSchema schema",
        }.items()
        for name in names.split()
    },
    "mysql": {"ssl_ca": "ssl_ca", "serversslcert": "ssl_ca", "ssl_cert": "ssl_cert", "ssl_key": "ssl_key"},
    "sqlite": {},
}
"""What a parameter is called for the driver, by its name in lower case."""
_IGNORED: Final = frozenset(
    {
        "allowpublickeyretrieval",
        "autoreconnect",
        "cacheprepstmts",
        "characterencoding",
        "charset",
        "connecttimeout",
        "connect_timeout",
        "loggerlevel",
        "logintimeout",
        "preparethreshold",
        "preparedstatementcachequeries",
        "rewritebatchedinserts",
        "rewritebatchedstatements",
        "servertimezone",
        "sockettimeout",
        "stringtype",
        "tcpkeepalive",
        "useserverprepstmts",
        "useunicode",
    }
)
"""Parameters that Java needs and that mean nothing here."""
_TARGETS: Final = {
    "any": "any",
    "primary": "read-write",
    "master": "read-write",
    "secondary": "standby",
    "preferprimary": "any",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUrl:
    """What a URL says. `hosts`: host and port, None for the usual one. `ignored`: names of parameters without a meaning here."""

    kind: Kind
    database: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    username: str = ""
    password: Secret = field(default_factory=Secret)
    options: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def parse(url: str) -> DatabaseUrl:
    """Read a URL; raises ValueError that says what is wrong and shows nothing of it."""
    plain = re.sub(r"^jdbc:", "", url.strip(), flags=re.IGNORECASE)
    scheme, separator, rest = plain.partition(":")
    kind = _SCHEMES.get(scheme.lower())
    if not separator or kind is None:
        message = f"it must begin with {_KNOWN}, after jdbc: or not"
        raise ValueError(message)
    if kind == "sqlite":
        return _sqlite(rest, is_jdbc=plain != url.strip())
    try:
        parts = urlsplit(f"database:{rest}")
        username, password = unquote(parts.username or ""), unquote(parts.password or "")
    except ValueError:
        message = "it cannot be read as a URL"
        raise ValueError(message) from None
    hosts, database = _hosts(parts, kind), unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        message = "after the host comes the name of the database"
        raise ValueError(message)
    given = _parameters(parts.query)
    username = given.pop("user", username)
    password = given.pop("password", password)
    is_mariadb = scheme.lower().startswith("mariadb")
    tls = take_postgresql(given) if kind == "postgresql" else take_mysql(given, is_mariadb=is_mariadb)
    options, ignored = _options(kind, given)
    options |= tls
    return DatabaseUrl(
        kind=kind, hosts=hosts, database=database, username=username, password=Secret(password), options=options, ignored=ignored
    )


def _sqlite(rest: str, *, is_jdbc: bool) -> DatabaseUrl:
    """`jdbc:sqlite:PATH`; `sqlite:///relative`, `sqlite:////absolute`."""
    path, question, _ = rest.partition("?")
    if not is_jdbc and not path.startswith("///"):
        path = ""
    path = re.sub(r"^/+", "/", path) if is_jdbc else path[3:]
    if question:
        message = "a SQLite file takes no parameters"
        raise ValueError(message)
    path = unquote(path)
    if not path or ":memory:" in path or path.startswith("file:"):
        message = "it must name a file (to keep nothing there is store.type memory)"
        raise ValueError(message)
    return DatabaseUrl(kind="sqlite", database=path)


def _hosts(parts: SplitResult, kind: Kind) -> tuple[tuple[str, int | None], ...]:
    hosts: list[tuple[str, int | None]] = []
    for address in parts.netloc.rpartition("@")[2].split(","):
        try:
            hosts.append(split_node(address) if re.search(r":[0-9]+$", address) else (_host(address), None))
        except ValueError:
            message = "a host, or its port, cannot be read"
            raise ValueError(message) from None
    if kind == "mysql" and len(hosts) > 1:
        message = "several hosts are for PostgreSQL only; put a proxy in front of MariaDB"
        raise ValueError(message)
    return tuple(hosts)


def _host(address: str) -> str:
    bare = address.removeprefix("[").removesuffix("]")
    if not bare or re.search(r"[\s/@\[\]]", bare) or (":" in bare and bare == address):
        raise ValueError(address)
    return bare


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        message = "what follows the ? must be name=value, joined by &"
        raise ValueError(message) from None
    return {name.lower(): value for name, value in pairs}


def _options(kind: Kind, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    options: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in given.items():
        if option := _OPTIONS[kind].get(name):
            options[option] = value
        elif kind == "postgresql" and name == "targetservertype" and value.lower() in _TARGETS:
            options["target_session_attrs"] = _TARGETS[value.lower()]
        elif name in _IGNORED:
            ignored.append(name)
        else:
            which = f"its parameter {name!r}" if re.fullmatch(r"\w{1,40}", name) else "one of its parameters"
            message = f"{which} is not known here, or its value is not"
            raise ValueError(message)
    return options, tuple(ignored)
