"""Which HTTP server runs the app: `server.engine`."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from coord.config import Configuration


class EngineUnfitError(Exception):
    """The server cannot run as it is configured; says which key is why."""


def check_engine(config: Configuration) -> None:
    """Try what the configured server needs before anything is started. Raises EngineUnfitError."""
    if config.server.engine == "granian":
        try:
            import granian  # noqa: F401, PLC0415  an extra: looked for only where it is wanted
        except ImportError as error:
            raise EngineUnfitError(
                "server.engine: granian needs the package granian, which is not installed here:"
                f" pip install 'redis-stream-coordinator[granian]' ({error})"
            ) from None
    tls = config.server.tls
    if not tls.cert_file:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
        if tls.ca_file:
            context.load_verify_locations(tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise EngineUnfitError(f"server.tls: the certificate, its key or the CA file is of no use: {error}") from None


def run(config: Configuration, *, reread: Callable[[], Configuration], log_level: str) -> None:
    """Serve until told to stop. Raises SystemExit, whose code is 0 or None only after an orderly end.

    `reread` gives the configuration anew at SIGHUP; what it refuses is logged, and the old one stays.
    """
    if config.server.engine == "granian":
        from coord.http.engines.granian import GranianServer  # noqa: PLC0415  an extra

        GranianServer(config, reread=reread, log_level=log_level).run()
    else:
        from coord.http.engines.gunicorn import CoordinatorServer  # noqa: PLC0415  only the chosen one is loaded

        CoordinatorServer(config, reread=reread, log_level=log_level).run()
