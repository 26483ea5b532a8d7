"""What differs between the databases, as the rest of the store sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Literal, TypeAlias

from sqlalchemy import Connection, Engine, Table, create_engine, text
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement

from coord.store.base import Touch, Touched
from coord.store.sql.rows import Renewal
from coord.store.sql.settings import SqlSettings

Fault: TypeAlias = Literal["contention", "duplicate", "busy", "missing", "unreadable", "refused", "lost"]
"""What an error of a driver means. `contention`: a deadlock or a serialization failure. `duplicate`: the key is there already.
`busy`: a lock or a statement took too long. `missing`: a table is not there. `unreadable`: what is stored is no text.
`refused`: the database will not do it. `lost`: the connection broke, or nothing was heard in time."""

Change: TypeAlias = Callable[[Any, Any], Mapping[str, ColumnElement[Any]]]
"""From the stored and the offered row of an upsert to what the row becomes."""

CONSTANT: Final = "constant"
STORE_ID: Final = "(SELECT store_id FROM coordinator_store WHERE id = 1)"
"""The part of the identity that is a row: an operator who put back rows by hand gives it another value."""
MIGRATION_LOCK: Final = "coordinator_schema"
MIGRATION_S_MAX: Final = 60


class DriverError(Exception):
    """What a driver raised where SQLAlchemy was not in between."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__(str(orig))
        self.orig = orig


class Dialect(ABC):
    """One kind of database, and one server's way of it once it was probed.

    `clock`: SQL for its time, ms. `identity`: SQL for which store this is at that moment; NULL where it cannot be told.
    """

    begin: ClassVar[str]
    """Starts a transaction that may write."""
    one_writer: ClassVar[bool] = False
    """The database has one writer at a time, and no fair queue for it."""
    touches_at_once: ClassVar[bool] = True
    """A touch is worth a statement of its own: several would cost round trips."""

    clock: str
    identity: str

    def __init__(self, settings: SqlSettings) -> None:
        self.settings = settings
        self.is_constant = settings.identity_source == CONSTANT

    @abstractmethod
    def engine(self) -> Engine:
        """Make an engine; connects on first use. Its connections commit by themselves: transactions begin by `begin`."""

    def pooled(self, url: str, connect: Callable[[], Any], **options: Any) -> Engine:
        """Make an engine whose connections come from `connect`. Nothing is sent but what is asked for: no BEGIN, no ROLLBACK."""
        return create_engine(
            url,
            creator=connect,
            isolation_level="AUTOCOMMIT",
            poolclass=QueuePool,
            pool_size=self.settings.max_connections,
            max_overflow=0,
            pool_timeout=self.settings.timeout_s,
            pool_reset_on_return=None,
            skip_autocommit_rollback=True,
            hide_parameters=True,
            enable_from_linting=False,  # a join on true is meant
            **options,
        )

    @abstractmethod
    def fault_of(self, error: BaseException) -> Fault:
        """Say what an error of the driver means."""

    @abstractmethod
    def upsert(self, table: Table, change: Change) -> Insert:
        """Give an INSERT that changes the row where its key is there already."""

    @abstractmethod
    def greater(self, one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
        """Give the larger of two numbers that are not null."""

    def limit(self, driver_connection: Any, until: float) -> None:  # noqa: B027  most bounds are set when a connection is opened
        """Bound what is said on a connection until that time (monotonic, s)."""

    def is_current(self, driver_connection: Any) -> bool:  # noqa: ARG002  a server has no such thing
        """Tell whether a pooled connection still leads to the database of this name."""
        return True

    def probe(self, connection: Connection) -> None:  # noqa: B027  not every kind has more than one way
        """Learn how this server tells its identity."""

    def touch(self, connection: Connection, touch: Touch, renewal: Renewal | None) -> Touched:
        """Carry out a touch for one member, or none, in one round trip, where `touches_at_once`."""
        raise NotImplementedError

    def concerns(self, connection: Connection) -> Sequence[str]:  # noqa: ARG002  some kinds have to ask
        """Say by which settings this database loses what it has acknowledged."""
        return ()

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """Keep every other migration out, and lift the bounds of the connection, inside the block; one transaction."""
        connection.execute(text(self.begin))
        try:
            yield
        except BaseException:
            connection.execute(text("ROLLBACK"))
            raise
        connection.execute(text("COMMIT"))


def first_line(error: BaseException) -> str:
    """Give what a driver says, without the statement and its values."""
    told = str(getattr(error, "orig", None) or error).strip()
    return told.splitlines()[0] if told else type(error).__name__
