"""gunicorn around the app: one set of services a worker, made after the fork.

The master connects to nothing and runs no thread of ours, so a fork inherits nothing: each worker builds its services, starts
its ticker (which of all the tickers works is settled in the store), and stops both at its end.
Source: design pages `architecture.md` and `config-and-observability.md`; scenarios J10, O1, O3.
"""

from __future__ import annotations

import signal
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, Literal

import structlog
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from coord.bootstrap import Services, build
from coord.config import Configuration, ConfigurationError
from coord.config.loading import cores
from coord.http.app import App, authenticator_of, create_app
from coord.http.auth import Authenticator
from coord.http.engines.arrival import REQUEST_LINE_BYTES_MAX
from coord.http.engines.starting import MS_PER_S, bracketed, connections_max, log_start
from coord.http.renewal import Editions, news_of_access
from coord.http.slots import Slots
from coord.observability.gunicorn_logging import GunicornLogger

SILENCE_S: Final = 60
"""A worker whose main loop is silent for so long is replaced; requests run in its threads and do not count."""
_LOG = structlog.get_logger(__name__)


class CoordinatorServer(BaseApplication):  # type: ignore[misc]  # gunicorn ships no types
    """Runs until it is told to stop.

    `reread`: gives the configuration anew at SIGHUP; what it refuses is logged and the old one stays.
    """

    def __init__(
        self, configuration: Configuration, *, reread: Callable[[], Configuration] | None = None, log_level: str
    ) -> None:
        self.configuration = configuration
        self._reread = reread
        self._log_level = log_level
        self._services: Services | None = None
        self._authenticator: Authenticator | None = None
        self._renewing = threading.Lock()
        self.editions = Editions()
        self._runs = Slots(cores())
        self._is_first_load = True
        super().__init__()

    def load_config(self) -> None:
        """Give gunicorn its settings; called at the start and at each SIGHUP."""
        if not self._is_first_load and self._reread is not None:
            try:
                self.configuration = self._reread()
                _LOG.info("configuration read again")
            except ConfigurationError as error:
                _LOG.error("the configuration is refused, the old one stays", problems=[str(each) for each in error.problems])
        self._is_first_load = False
        for name, value in settings_of(self.configuration, log_level=self._log_level).items():
            self.cfg.set(name, value)
        self.cfg.set("when_ready", self._tell_start)
        self.cfg.set("post_worker_init", self._start)
        self.cfg.set("worker_exit", self._stop)

    def load(self) -> App:
        """Make this worker's services and the app around them."""
        self._hear_of_news()
        self._services = build(self.configuration)
        with self._renewing:
            self._authenticator = authenticator_of(self.configuration, self._runs)
        if self.editions.is_outdated():
            self._renew_access()
        return create_app(self._services, self._authenticator)

    def run(self) -> None:
        """Run the master until it is told to stop; ends with SystemExit."""
        OneStoreArbiter(self).run()

    def reread_access(self) -> Literal["changed", "refused", "other"]:
        """Read the configuration again, and keep it if nothing but users and token secrets changed; see `news_of_access`."""
        news = news_of_access(self.configuration, self._reread)
        if isinstance(news, str):
            return news
        self.configuration = news
        return "changed"

    def _hear_of_news(self) -> None:
        """Let SIGHUP, which the master hands on, put new users in force: in a thread, for a handler may wait for no lock."""
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=self._renew_access, name="renewal", daemon=True).start())
        signal.siginterrupt(signal.SIGHUP, False)

    def _renew_access(self) -> None:
        """Put users and token secrets that changed in force; what is under way is not disturbed."""
        with self._renewing:  # of two at once, the one that read first must not win
            if self.reread_access() == "changed" and self._authenticator is not None:
                self._authenticator.replace(self.configuration.api)
                _LOG.info("users and token secrets read again")

    def terminate(self) -> None:
        """Turn away what comes from now on (in a worker, at SIGTERM)."""
        if self._services is not None:
            self._services.terminating = True

    def _start(self, _worker: Any) -> None:
        assert self._services is not None, "gunicorn loads the app before it starts the worker"
        self._services.start()

    def _stop(self, _arbiter: Any, _worker: Any) -> None:
        if self._services is not None:
            self._services.stop()

    def _tell_start(self, _arbiter: Any) -> None:
        log_start(self.configuration)


class OneStoreArbiter(Arbiter):  # type: ignore[misc]  # gunicorn ships no types
    """gunicorn's master: it hands new users on, and does not grow beyond one worker where the state lives in that worker."""

    def handle_hup(self) -> None:
        """SIGHUP: users and token secrets change in the running workers; anything else comes with new ones."""
        told = self.app.reread_access()
        if told == "changed":
            self.app.editions.next()
            self.kill_workers(signal.SIGHUP)
        elif told == "other":
            super().handle_hup()

    def handle_ttin(self) -> None:
        """SIGTTIN: one worker more."""
        if self.app.configuration.store.type == "memory":
            _LOG.warning("no second worker is started: with store.type memory each would have its own groups")
            return
        super().handle_ttin()


def settings_of(config: Configuration, *, log_level: str) -> dict[str, Any]:
    """Give gunicorn's settings for a configuration."""
    server = config.server
    settings: dict[str, Any] = {
        "bind": [f"{bracketed(server.host)}:{server.port}"],
        "workers": server.workers,
        "threads": server.threads,
        "worker_class": "coord.http.engines.worker.CoordinatorWorker",
        "worker_connections": connections_max(),
        "keepalive": max(1, server.keep_alive_ms // MS_PER_S),
        "graceful_timeout": max(1, server.graceful_timeout_ms // MS_PER_S),
        "timeout": SILENCE_S,
        "limit_request_line": REQUEST_LINE_BYTES_MAX,
        "logger_class": GunicornLogger,
        "loglevel": log_level,
        "accesslog": None,
        "proc_name": "coord",
        "control_socket_disable": True,
    }
    if server.tls.cert_file:
        settings |= {"certfile": server.tls.cert_file, "keyfile": server.tls.key_file}
    if server.tls.ca_file:
        settings |= {"ca_certs": server.tls.ca_file, "cert_reqs": ssl.CERT_REQUIRED}
    return settings
