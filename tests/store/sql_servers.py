"""Private PostgreSQL and MariaDB servers for tests: a free port on loopback, an own directory, ended by their own process handle.

The programs are Debian's, fetched by `ops/setup/postgresql.sh` and `ops/setup/mariadb.sh`. Neither runs as root, so root runs
them as nobody.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from coord.store.sql import tables
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.store.redis_server import free_port

CACHE = Path(__file__).parents[2] / ".cache"
START_S_MAX = 60
TIMEOUT_MS = 30_000
"""Of a call, where a test asks for no other: a busy machine may take long to make tables."""
EMPTY_AT_FIRST = [table.name for table in tables.schema.sorted_tables if table not in {tables.loop, tables.store}]
USER = "coord"
PASSWORD = "marker-of-a-password"
NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")


class SqlServer(ABC):
    """A server that may be killed, frozen, and started again on the same port and data."""

    folder: str
    program: str

    def __init__(self, *options: str, durable: bool = False, directory: Path | None = None) -> None:
        self.port = free_port()
        self.bin = CACHE / self.folder / "bin"
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"coord-test-{self.folder}-"))
        self.durable = durable
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._used = ""
        if os.geteuid() == 0:
            shutil.chown(self.directory, "nobody", "nogroup")
        try:
            if directory is None:
                self.initialize()
            self.start()
            if directory is None:
                self.furnish()
        except BaseException:
            self.close()
            raise

    @classmethod
    def is_there(cls) -> bool:
        """Whether the programs were fetched."""
        return (CACHE / cls.folder / "bin" / cls.program).exists()

    @abstractmethod
    def initialize(self) -> None:
        """Make the data directory."""

    @abstractmethod
    def furnish(self) -> None:
        """Make the user of the tests."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it takes connections."""

    @abstractmethod
    def new_database(self) -> str:
        """Make an empty database; gives its name."""

    @abstractmethod
    def _connect(self, database: str) -> Any:
        """Connect as the owner of everything."""

    def emptied_database(self) -> str:
        """Give the same database each time, its tables made and empty: to make them takes longer than most tests."""
        if not self._used:
            self._used = self.new_database()
            with closing(self.store(self._used, timeout_ms=60_000)) as store:
                store.identity()
        with self._connect(self._used) as connection, connection.cursor() as cursor:
            for table in EMPTY_AT_FIRST:
                cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"UPDATE {tables.loop.name} SET ticker = '', ticked_at = 0")
        return self._used

    @abstractmethod
    def url(self, database: str, *, port: int | None = None) -> str:
        """The JDBC URL of a database."""

    @abstractmethod
    def execute(self, database: str, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Run a statement as the owner of everything."""

    @abstractmethod
    def settings(self, database: str, *, port: int | None = None, **changes: object) -> SqlSettings:
        """How a store reaches a database."""

    def store(self, database: str, *, port: int | None = None, **changes: object) -> SqlStore:
        """A store on a database; it makes its tables."""
        return SqlStore(dialect_of(self.settings(database, port=port, **changes)))

    def as_nobody(self, *command: str) -> list[str]:
        return [*(NOBODY if os.geteuid() == 0 else ()), *command]

    def start(self) -> None:
        """Start the process and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.as_nobody(*self.command()),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "HOME": str(self.directory)},
                start_new_session=True,
            )
        end = time.monotonic() + START_S_MAX
        while not self.answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()[-3000:]
            assert time.monotonic() < end, f"{self.program} did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the server and all its processes; its port refuses connections from now on."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop all its processes: the kernel still accepts connections, nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To all its processes; the first is held meanwhile, or it would start new ones in their place."""
        assert self._process is not None
        first = self._process.pid
        os.kill(first, signal.SIGSTOP)
        for pid in (*_children(first), first):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


class PostgresqlServer(SqlServer):
    folder = "postgresql"
    program = "postgres"

    def initialize(self) -> None:
        password = self.directory / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            shutil.chown(password, "nobody", "nogroup")
        self._run(
            "initdb", "-D", str(self.directory / "data"), "-U", "owner", f"--pwfile={password}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale=C", "--no-sync",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self.as_nobody(str(self.bin / program), *arguments),
            cwd=self.directory,
            env={**os.environ, "HOME": str(self.directory), "PGPASSWORD": PASSWORD},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def furnish(self) -> None:
        self.execute("postgres", f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")

    def command(self) -> list[str]:
        switch = "on" if self.durable else "off"
        settings = (f"fsync={switch}", f"full_page_writes={switch}", "listen_addresses=127.0.0.1", "unix_socket_directories=",
                    "max_connections=200", "shared_buffers=32MB", "timezone=Asia/Seoul", *self._options)  # fmt: skip
        flags = [part for setting in settings for part in ("-c", setting)]
        return [str(self.bin / "postgres"), "-D", str(self.directory / "data"), "-p", str(self.port), *flags]

    def _connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="owner", password=PASSWORD, dbname=database, autocommit=True, connect_timeout=5
        )

    def answers(self) -> bool:
        try:
            self._connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def new_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self.execute("postgres", f"CREATE DATABASE {name} OWNER {USER}")
        return name

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"jdbc:postgresql://127.0.0.1:{port or self.port}/{database}?user={USER}&password={PASSWORD}"

    def execute(self, database: str, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._connect(database) as connection:
            done = connection.execute(statement.encode(), values or None)
            return done.fetchall() if done.description else []

    def settings(self, database: str, *, port: int | None = None, **changes: object) -> SqlSettings:
        plain: dict[str, object] = {
            "kind": "postgresql", "hosts": (("127.0.0.1", port or self.port),), "database": database, "username": USER,
            "password": PASSWORD, "migrates": True, "timeout_ms": TIMEOUT_MS,
        }  # fmt: skip
        return SqlSettings(**(plain | changes))  # type: ignore[arg-type]  # a test changes any field

    def replica(self) -> PostgresqlServer:
        """A replica that follows asynchronously, ready to be promoted."""
        directory = Path(tempfile.mkdtemp(prefix="coord-test-postgresql-"))
        if os.geteuid() == 0:
            shutil.chown(directory, "nobody", "nogroup")
        self._run(
            "pg_basebackup", "-h", "127.0.0.1", "-p", str(self.port), "-U", "owner", "-D", str(directory / "data"), "-R", "-X",
            "stream", "-c", "fast",
        )  # fmt: skip
        return PostgresqlServer(*self._options, directory=directory)

    def promote(self) -> None:
        """Make a replica the primary."""
        self.execute("postgres", "SELECT pg_promote(true)")


class MariadbServer(SqlServer):
    folder = "mariadb"
    program = "mariadbd"

    @property
    def _base(self) -> str:
        return f"--basedir={(CACHE / self.folder).resolve()}/tree/usr"

    def initialize(self) -> None:
        done = subprocess.run(
            self.as_nobody(
                str(self.bin / "mariadb-install-db"), "--no-defaults", self._base, f"--datadir={self.directory}/data",
                "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-flush-log-at-trx-commit=0",
                f"--tmpdir={self.directory}",  # a server that starts removes what others have in theirs
            ),
            cwd=self.directory, env={**os.environ, "HOME": str(self.directory)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    def furnish(self) -> None:
        self.execute("mysql", f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")

    def command(self) -> list[str]:
        return [
            str(self.bin / "mariadbd"), "--no-defaults", self._base, f"--datadir={self.directory}/data", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.directory}/socket", f"--pid-file={self.directory}/pid",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 0}", "--innodb-buffer-pool-size=32M",
            f"--tmpdir={self.directory}",
            "--skip-name-resolve", "--max-connections=200", "--default-time-zone=+09:00", *self._options,
        ]  # fmt: skip

    def _connect(self, database: str) -> pymysql.connections.Connection:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True, connect_timeout=5,
            charset="utf8mb4",
        )  # fmt: skip

    def answers(self) -> bool:
        try:
            self._connect("mysql").close()
        except pymysql.err.OperationalError:
            return False
        return True

    def new_database(self) -> str:
        """The database's own character set is none that could hold the names."""
        name = f"test_{next(self._numbers)}"
        self.execute("mysql", f"CREATE DATABASE {name} CHARACTER SET latin1")
        self.execute("mysql", f"GRANT ALL ON {name}.* TO '{USER}'@'%'")
        return name

    def url(self, database: str, *, port: int | None = None) -> str:
        return f"jdbc:mariadb://127.0.0.1:{port or self.port}/{database}?user={USER}&password={PASSWORD}"

    def execute(self, database: str, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def settings(self, database: str, *, port: int | None = None, **changes: object) -> SqlSettings:
        plain: dict[str, object] = {
            "kind": "mysql", "hosts": (("127.0.0.1", port or self.port),), "database": database, "username": USER,
            "password": PASSWORD, "migrates": True, "timeout_ms": TIMEOUT_MS,
        }  # fmt: skip
        return SqlSettings(**(plain | changes))  # type: ignore[arg-type]  # a test changes any field
