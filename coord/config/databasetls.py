"""How a database URL asks for TLS: Java's parameters and the drivers' own, in one meaning.

Where two parameters say different things, the one that is made for it (`sslMode`) wins, whatever their order. What would weaken
or replace a check in a way that is not known here is refused by its name, never passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OFF: Final = "off"
"""No TLS, even where the server offers it. No value: TLS where the server offers it, nothing is checked."""
_POSTGRESQL_MODES: Final = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})
_MYSQL_MODES: Final = {
    "disabled": OFF,
    "disable": OFF,
    "preferred": "",
    "required": "none",
    "trust": "none",
    "verify_ca": "ca",
    "verify-ca": "ca",
    "verify_identity": "identity",
    "verify-full": "identity",
}
_SWITCHES: Final = {"": True, "true": True, "false": False}
_MYSQL_SWITCHES: Final = (
    "usessl",
    "requiressl",
    "verifyservercertificate",
    "trustservercertificate",
    "disablesslhostnameverification",
)
_JAVA_ONLY: Final = (
    "sslfactory",
    "sslfactoryarg",
    "sslhostnameverifier",
    "sslpassword",
    "sslpasswordcallback",
    "keystore",
    "keystorepassword",
    "keypassword",
    "keystoretype",
    "truststore",
    "truststorepassword",
    "truststoretype",
    "trustcertificatekeystoreurl",
    "trustcertificatekeystorepassword",
    "trustcertificatekeystoretype",
    "clientcertificatekeystoreurl",
    "clientcertificatekeystorepassword",
    "clientcertificatekeystoretype",
    "enabledsslprotocolsuites",
    "enabledtlsprotocols",
    "tlsversions",
    "tlsciphersuites",
    "enabledsslciphersuites",
)


def refuse_java_only(given: Mapping[str, str], *, files: str) -> None:
    """Raise ValueError for Java's classes and key stores, none of which can be used here. `files`: what to give instead."""
    for name in _JAVA_ONLY:
        if name in given:
            message = f"its parameter {name!r} is for Java only: give PEM files by {files}, without a password"
            raise ValueError(message)


def take_postgresql(given: dict[str, str]) -> dict[str, str]:
    """Take what is about TLS out of the parameters; gives libpq's `sslmode`, or nothing. Raises ValueError."""
    refuse_java_only(given, files="sslrootcert, sslcert and sslkey")
    wanted = _switch(given, "ssl")
    if "sslmode" in given:
        mode = given.pop("sslmode").lower()
        if mode not in _POSTGRESQL_MODES:
            message = f"its parameter 'sslmode' must be one of {', '.join(sorted(_POSTGRESQL_MODES))}"
            raise ValueError(message)
        return {"sslmode": mode}
    return {"sslmode": "verify-full" if wanted else "prefer"} if wanted is not None else {}


def take_mysql(given: dict[str, str], *, is_mariadb: bool) -> dict[str, str]:
    """Take what is about TLS out of the parameters; gives `ssl_verify` (`off`, `none`, `ca` or `identity`), or nothing.

    `is_mariadb`: the URL is one of MariaDB's, whose `useSSL` checks the certificate and the host name; MySQL's checks nothing.
    """
    refuse_java_only(given, files="ssl_ca, ssl_cert and ssl_key")
    switches = {name: _switch(given, name) for name in _MYSQL_SWITCHES}
    has_ca = "ssl_ca" in given or "serversslcert" in given
    if "sslmode" in given:
        told = given.pop("sslmode").lower()
        if told not in _MYSQL_MODES:
            message = f"its parameter 'sslmode' must be one of {', '.join(sorted(_MYSQL_MODES))}"
            raise ValueError(message)
        mode: str | None = _MYSQL_MODES[told]
    else:
        mode = _mode_of(switches, is_mariadb=is_mariadb)
    if mode == OFF and has_ca:
        message = "one of its parameters switches TLS off, another names a CA for it"
        raise ValueError(message)
    if not mode and has_ca:
        mode = "identity"
    if not mode and "ssl_cert" in given:
        mode = "none"
    return {"ssl_verify": mode} if mode else {}


def _mode_of(switches: Mapping[str, bool | None], *, is_mariadb: bool) -> str | None:
    """Give the mode that the older parameters mean together."""
    if switches["usessl"] is False:
        return OFF
    if not any(switches[name] for name in ("usessl", "requiressl", "verifyservercertificate", "trustservercertificate")):
        return None
    if switches["trustservercertificate"]:
        return "none"
    if switches["verifyservercertificate"]:
        return "ca"
    if not is_mariadb:
        return "none"
    return "ca" if switches["disablesslhostnameverification"] else "identity"


def _switch(given: dict[str, str], name: str) -> bool | None:
    if name not in given:
        return None
    value = given.pop(name).lower()
    if value not in _SWITCHES:
        message = f"its parameter {name!r} must be true or false"
        raise ValueError(message)
    return _SWITCHES[value]
