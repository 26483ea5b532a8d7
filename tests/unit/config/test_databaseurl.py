"""URLs of SQL databases: both spellings mean the same, and what is wrong with one is told without showing it."""

from __future__ import annotations

import pytest

from coord.addresses import uses_redis
from coord.bootstrap import sql_settings
from coord.config.databaseurl import DatabaseUrl, parse
from coord.config.secret import Secret
from tests.unit.config.conftest import Place

MARKER = "marker"


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db.example:5433/coord?user=me&password=ma%2Frk%40er",
        "postgresql://me:ma%2Frk%40er@db.example:5433/coord",
        "postgresql+psycopg://me:ma%2Frk%40er@db.example:5433/coord",
        "JDBC:PostgreSQL://db.example:5433/coord?password=ma%2Frk%40er&user=me",
    ],
)
def test_both_spellings_mean_the_same(url: str) -> None:
    assert parse(url) == DatabaseUrl(
        kind="postgresql", hosts=(("db.example", 5433),), database="coord", username="me", password=Secret("ma/rk@er")
    )


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("jdbc:postgresql://h/db", (("h", None),)),
        ("jdbc:postgresql://a:1,b/db", (("a", 1), ("b", None))),
        ("jdbc:postgresql://[::1]:5432/db", (("::1", 5432),)),
        ("mysql://[::1]/db", (("::1", None),)),
    ],
)
def test_hosts(url: str, hosts: tuple[tuple[str, int | None], ...]) -> None:
    assert parse(url).hosts == hosts


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("jdbc:sqlite:coord.db", "coord.db"),
        ("jdbc:sqlite:/var/lib/coord.db", "/var/lib/coord.db"),
        ("sqlite:///coord.db", "coord.db"),
        ("sqlite:////var/lib/coord.db", "/var/lib/coord.db"),
        ("sqlite+pysqlite:///a%20b.db", "a b.db"),
    ],
)
def test_files(url: str, path: str) -> None:
    assert parse(url) == DatabaseUrl(kind="sqlite", database=path)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("jdbc:postgresql://h/db?ssl=true", {"sslmode": "verify-full"}),
        ("jdbc:postgresql://h/db?ssl=true&sslmode=require", {"sslmode": "require"}),
        ("jdbc:postgresql://h/db?currentSchema=coord&ApplicationName=x", {"schema": "coord", "application_name": "x"}),
        ("jdbc:postgresql://h/db?targetServerType=primary", {"target_session_attrs": "read-write"}),
        ("jdbc:mariadb://h/db?sslMode=verify-full&serverSslCert=/ca", {"ssl_verify": "identity", "ssl_ca": "/ca"}),
        ("mysql+pymysql://u@h/db?ssl_ca=/ca", {"ssl_verify": "identity", "ssl_ca": "/ca"}),
        ("jdbc:mysql://h/db?useSSL=true", {"ssl_verify": "none"}),
        ("jdbc:mysql://h/db?useSSL=false", {"ssl_verify": "off"}),
        ("jdbc:postgresql://h/db?ssl=false", {"sslmode": "prefer"}),
        ("jdbc:postgresql://h/db?ssl=", {"sslmode": "verify-full"}),
        ("jdbc:postgresql://h/db?sslmode=Verify-CA&ssl=true&sslrootcert=/ca", {"sslmode": "verify-ca", "sslrootcert": "/ca"}),
        ("jdbc:mysql://h/db?sslMode=PREFERRED&allowPublicKeyRetrieval=true", {}),
        ("jdbc:mysql://h/db?sslMode=DISABLED", {"ssl_verify": "off"}),
        ("jdbc:mysql://h/db?sslMode=VERIFY_IDENTITY&useSSL=true", {"ssl_verify": "identity"}),
        ("jdbc:mysql://h/db?useSSL=false&sslMode=VERIFY_CA", {"ssl_verify": "ca"}),
        ("jdbc:mysql://h/db?useSSL=true&requireSSL=true&verifyServerCertificate=true", {"ssl_verify": "ca"}),
        ("jdbc:mysql://h/db?requireSSL=true", {"ssl_verify": "none"}),
        ("jdbc:mariadb://h/db?useSsl=true", {"ssl_verify": "identity"}),
        ("jdbc:mariadb://h/db?useSsl=true&disableSslHostnameVerification=true", {"ssl_verify": "ca"}),
        ("jdbc:mariadb://h/db?useSsl=true&trustServerCertificate=true", {"ssl_verify": "none"}),
        ("jdbc:mariadb://h/db?ssl_cert=/c&ssl_key=/k", {"ssl_verify": "none", "ssl_cert": "/c", "ssl_key": "/k"}),
    ],
)
def test_parameters_by_the_drivers_names(url: str, options: dict[str, str]) -> None:
    assert parse(url).options == options


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:oracle:thin:@marker",
        "oracle://marker/db",
        "jdbc:postgresql://u:marker@h",
        "jdbc:postgresql://u:marker@/db",
        "jdbc:postgresql://u:marker@h:99999/db",
        "jdbc:postgresql://u:marker@h:x/db",
        "jdbc:postgresql://h/db?passwort=marker",
        "jdbc:postgresql://h/db?marker%00=marker",
        "jdbc:postgresql://h/db?marker",
        "jdbc:mariadb://u:marker@a,b/db",
        "jdbc:mariadb://h/db?sslMode=marker",
        "jdbc:sqlite::memory:",
        "sqlite://",
        "jdbc:sqlite:marker.db?key=marker",
        "sqlite:///file:marker",
    ],
)
def test_what_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse(url)
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("postgresql://h/db?sslmode=marker", "'sslmode' must be one of"),
        ("postgresql://h/db?ssl=marker", "'ssl' must be true or false"),
        ("postgresql://h/db?ssl=true&sslfactory=marker", "'sslfactory' is for Java only"),
        ("postgresql://h/db?sslpassword=marker", "'sslpassword' is for Java only.*sslkey"),
        ("mysql://h/db?sslMode=marker", "'sslmode' must be one of"),
        ("mysql://h/db?useSSL=marker", "'usessl' must be true or false"),
        ("mysql://h/db?sslMode=VERIFY_CA&trustCertificateKeyStoreUrl=file:marker", "'trustcertificatekeystoreurl'.*ssl_ca"),
        ("mariadb://h/db?sslMode=verify-full&trustStore=marker", "'truststore'.*ssl_ca"),
        ("mariadb://h/db?sslMode=disable&ssl_ca=marker", "switches TLS off"),
        ("mariadb://h/db?tlsVersions=marker", "'tlsversions'"),
    ],
)
def test_what_is_asked_of_tls_and_cannot_be_given_is_refused_by_name(query: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        parse(f"jdbc:{query}")
    assert MARKER not in str(caught.value)


def test_a_start_without_a_database_is_refused(place: Place) -> None:
    """The kind of store asks for the URL, and a bad URL is told by its key, unseen."""
    assert "needs the URL" in place.refused(COORDINATOR_STORE_TYPE="jdbc")["store.url"]
    refused = place.refused(COORDINATOR_STORE_TYPE="jdbc", COORDINATOR_STORE_URL="jdbc:postgresql://h/db?passwort=marker")
    assert "'passwort'" in refused["store.url"]
    assert MARKER not in str(refused)
    refused = place.refused(COORDINATOR_STORE_TYPE="jdbc", COORDINATOR_STORE_URL="jdbc:mariadb://h/db")
    assert "a user is needed" in str(refused)


def test_what_means_nothing_here_is_told(place: Place) -> None:
    warned = place.coordinator(
        "store: {type: jdbc, url: 'jdbc:postgresql://h/db?socketTimeout=3&useUnicode=true'}",
        "coordination: {state-mutex: {strategy: always}}",
    ).warned()
    assert "sockettimeout, useunicode" in warned["store.url"]
    assert "no meaning" in warned["coordination.state-mutex.strategy"]


def test_a_library_that_is_missing_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coord.config.checks.find_spec", lambda name: None if name == "psycopg" else True)
    refused = place.refused(COORDINATOR_STORE_TYPE="jdbc", COORDINATOR_STORE_URL="jdbc:postgresql://h/db")
    assert "psycopg" in refused["store.type"]
    assert "[sql]" in refused["store.type"]


def test_user_and_password_may_stand_beside_the_url(place: Place) -> None:
    """Beside it they win, so that a secret can come from a file; nothing of them shows."""
    place.mount("coordinator.store.jdbc.password", "marker")
    config = place.coordinator(
        "store: {type: sql, url: 'jdbc:postgresql://a:marker@h/db', jdbc: {username: b, timeout-ms: 3s, max-connections: 5}}"
    ).load()
    settings = sql_settings(config, migrates=False)
    assert (settings.username, settings.password, settings.timeout_ms, settings.max_connections) == ("b", "marker", 3000, 5)
    assert MARKER not in repr(settings)
    assert MARKER not in settings.place
    assert MARKER not in repr(config)


@pytest.mark.parametrize(
    ("lines", "variables", "used"),
    [
        ((), {}, False),
        (("streams: {provisioning-enabled: true}",), {}, True),
        (("redis: {host: r}",), {}, True),
        ((), {"REDIS_URL": "redis://r/0"}, True),
    ],
)
def test_whether_there_is_a_redis_beside_the_database(
    place: Place, lines: tuple[str, ...], variables: dict[str, str], used: bool
) -> None:
    """There is one if anything says so; otherwise the coordinator works without any."""
    config = place.coordinator("store: {type: jdbc, url: 'jdbc:sqlite:x'}", *lines).load(environ=variables)
    assert uses_redis(config) is used
