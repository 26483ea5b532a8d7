"""TLS to real databases, as their URLs ask for it: what is encrypted, and whose certificate is believed.

The certificate beside this file is of `localhost`, and its own CA.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from coord.config.databaseurl import parse
from coord.store.base import StoreUnavailable
from coord.store.sql.choice import dialect_of
from coord.store.sql.store import SqlStore
from tests.store.sql_servers import MariadbServer, PostgresqlServer, SqlServer

FILES = Path(__file__).parent / "tls"
CA = FILES / "certificate.pem"
KEY = FILES / "key.pem"


@pytest.fixture(scope="module")
def files() -> Iterator[Path]:
    """Certificate and key, where the servers' user may read them and nobody else."""
    folder = Path(tempfile.mkdtemp(prefix="coord-test-tls-"))
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(FILES / name, folder / name)
        (folder / name).chmod(0o600)
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody", "nogroup")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def secured_postgresql(files: Path) -> Iterator[PostgresqlServer]:
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    options = ("ssl=on", f"ssl_cert_file={files}/certificate.pem", f"ssl_key_file={files}/key.pem")
    with closing(PostgresqlServer(*options)) as server:
        yield server


@pytest.fixture(scope="module")
def secured_mariadb(files: Path) -> Iterator[MariadbServer]:
    if not MariadbServer.is_there():
        pytest.skip("MariaDB is not there: ops/setup/mariadb.sh")
    certificate = f"{files}/certificate.pem"
    options = (f"--ssl-cert={certificate}", f"--ssl-key={files}/key.pem", f"--ssl-ca={certificate}")
    with closing(MariadbServer(*options)) as server:
        yield server


def cipher(server: SqlServer, query: str, *, host: str = "localhost", scheme: str = "") -> str:
    """Give with what a store's connection is encrypted, "" for plain text. Raises StoreUnavailable."""
    name = server.new_database()
    url = parse(f"jdbc:{scheme or server.folder}://{host}:{server.port}/{name}?{query}")
    settings = server.settings(name, hosts=url.hosts, options=url.options, timeout_ms=10_000)
    if isinstance(server, PostgresqlServer):
        asked = "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    else:
        asked = "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'"
    with closing(SqlStore(dialect_of(settings))) as store:
        store.ping()
        return store._connections.read(lambda connection: connection.execute(text(asked)).scalar_one() or "")


@pytest.mark.parametrize(
    ("query", "host"),
    [
        (f"sslmode=verify-full&sslrootcert={CA}", "localhost"),
        (f"ssl=true&sslrootcert={CA}", "localhost"),
        (f"sslmode=verify-ca&sslrootcert={CA}", "127.0.0.1"),
        ("sslmode=require", "127.0.0.1"),
        ("", "127.0.0.1"),
    ],
)
def test_postgresql_is_encrypted(secured_postgresql: PostgresqlServer, query: str, host: str) -> None:
    assert cipher(secured_postgresql, query, host=host) != ""


@pytest.mark.parametrize(
    ("query", "host", "why"),
    [
        (f"sslmode=verify-full&sslrootcert={CA}", "127.0.0.1", "certificate"),
        (f"ssl=true&sslrootcert={CA}", "127.0.0.1", "certificate"),
        ("sslmode=verify-full&sslrootcert=system", "localhost", "certificate"),
        (f"sslmode=verify-full&sslrootcert={CA}.gone", "localhost", "root certificate file"),
    ],
)
def test_postgresql_that_cannot_prove_itself_is_not_talked_to(
    secured_postgresql: PostgresqlServer, query: str, host: str, why: str
) -> None:
    with pytest.raises(StoreUnavailable, match=why):
        cipher(secured_postgresql, query, host=host)


def test_postgresql_plain_where_that_is_asked_and_nowhere_else(
    secured_postgresql: PostgresqlServer, shared_postgresql: PostgresqlServer
) -> None:
    assert cipher(secured_postgresql, "sslmode=disable") == ""
    with pytest.raises(StoreUnavailable, match="does not support SSL"):
        cipher(shared_postgresql, "sslmode=require")


@pytest.mark.parametrize(
    ("query", "host", "scheme"),
    [
        (f"sslMode=verify-full&serverSslCert={CA}", "localhost", "mariadb"),
        (f"useSsl=true&serverSslCert={CA}", "localhost", "mariadb"),
        (f"sslMode=VERIFY_IDENTITY&ssl_ca={CA}", "localhost", "mysql"),
        (f"sslMode=VERIFY_CA&ssl_ca={CA}", "127.0.0.1", "mysql"),
        ("sslMode=REQUIRED", "127.0.0.1", "mysql"),
        ("useSSL=true", "127.0.0.1", "mysql"),
        ("sslMode=trust", "127.0.0.1", "mariadb"),
        ("", "127.0.0.1", "mariadb"),
    ],
)
def test_mariadb_is_encrypted(secured_mariadb: MariadbServer, query: str, host: str, scheme: str) -> None:
    assert cipher(secured_mariadb, query, host=host, scheme=scheme) != ""


@pytest.mark.parametrize(
    ("query", "host", "scheme"),
    [
        (f"sslMode=verify-full&serverSslCert={CA}", "127.0.0.1", "mariadb"),
        (f"sslMode=VERIFY_IDENTITY&useSSL=true&ssl_ca={CA}", "127.0.0.1", "mysql"),
        (f"ssl_ca={CA}", "127.0.0.1", "mariadb"),
        ("sslMode=VERIFY_CA", "localhost", "mysql"),
        ("useSsl=true", "localhost", "mariadb"),
    ],
)
def test_mariadb_that_cannot_prove_itself_is_not_talked_to(
    secured_mariadb: MariadbServer, query: str, host: str, scheme: str
) -> None:
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        cipher(secured_mariadb, query, host=host, scheme=scheme)


def test_mariadb_plain_where_that_is_asked_and_nowhere_else(
    secured_mariadb: MariadbServer, shared_mariadb: MariadbServer
) -> None:
    assert cipher(secured_mariadb, "useSSL=false") == ""
    with pytest.raises(StoreUnavailable, match="SSL is required"):
        cipher(shared_mariadb, "sslMode=REQUIRED")


def test_mariadb_asks_for_a_certificate_of_the_client(secured_mariadb: MariadbServer) -> None:
    secured_mariadb.execute("mysql", "ALTER USER coord REQUIRE X509")
    try:
        assert cipher(secured_mariadb, f"sslMode=verify-full&ssl_ca={CA}&ssl_cert={CA}&ssl_key={KEY}") != ""
        with pytest.raises(StoreUnavailable, match="denied"):
            cipher(secured_mariadb, f"sslMode=verify-full&ssl_ca={CA}")
    finally:
        secured_mariadb.execute("mysql", "ALTER USER coord REQUIRE NONE")
