"""How a database is reached, and within what bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["postgresql", "mysql", "sqlite"]
"""`mysql` is MariaDB too: they speak one language, and differ where the server says what it is."""

FIRST_TRY_SHARE: Final = 0.5
"""How much of a call's time a first attempt may take before it is given up and made again on a fresh connection."""
STATEMENT_SHARE: Final = 0.45
"""How much of it the server may spend on one statement: less, so that a slow one is told by the server, not by a cut."""
LOCK_SHARE: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSettings:
    """One database.

    `hosts`: host and port (None: the usual one), several only for PostgreSQL; none for SQLite, whose `database` is a path.
    `options`: TLS and the like, by the driver's names. `timeout_ms`: bound on a call; a connection that has to be opened
    first may add its own (PostgreSQL: whole seconds, at least two). `migrates`: make and change the tables when needed.
    """

    kind: Kind
    database: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    timeout_ms: int = 2000
    max_connections: int = 10
    identity_source: Literal["auto", "constant"] = "auto"
    migrates: bool = False

    @property
    def timeout_s(self) -> float:
        """The bound on a call, in seconds."""
        return self.timeout_ms / 1000

    @property
    def place(self) -> str:
        """Where the database is, without credentials."""
        hosts = ",".join(host if port is None else f"{host}:{port}" for host, port in self.hosts)
        return f"{self.kind} {hosts}/{self.database}" if hosts else f"{self.kind} {self.database}"
