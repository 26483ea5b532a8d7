"""granian around the same app, with the process model that gunicorn has: one set of services a worker, made after the fork.

granian's HTTP is written in Rust, so threads run Python only, and reading a request's head costs none. Its master is kept to
gunicorn's manners here: all workers listen on one socket, so that none takes connections with it when it dies; who dies is
replaced; SIGHUP reads the configuration again and replaces the workers one after another, without which threads, keep-alive,
TLS and everything beyond HTTP would stay as they were (host, port and the number of workers do stay until a restart).
Source: design pages `performance.md` and `config-and-observability.md`; scenarios J10, O1, O3.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import granian._signals
import structlog
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer, WorkerProcess

from coord.bootstrap import Services, build
from coord.config import Configuration, ConfigurationError
from coord.config.loading import cores
from coord.http.app import App, authenticator_of, create_app
from coord.http.engines.starting import MS_PER_S, connections_max, log_start, open_listener, settle_memory
from coord.http.renewal import Editions, news_of_access
from coord.http.slots import Slots

BACKLOG: Final = 2048
LOOK_S: Final = 0.2
"""How often the master looks for signals and dead workers."""
PARENT_LOOK_S: Final = 1.0
YOUNG_S: Final = 1.0
"""A worker that did not live so long is replaced only after a pause of this length."""
KILL_AFTER_S: Final = 5
"""How long beyond the graceful time-out a worker is waited for before it is killed."""
BOOT_FAILED: Final = 3
"""Exit code of a worker that could not make its services: another one could not either."""
_OUR_LOGS: Final = {"version": 1, "incremental": True, "formatters": {}, "handlers": {}, "loggers": {"_granian": {}}}
"""granian adds no handler of its own: its lines go the way of all others."""
_LOG = structlog.get_logger(__name__)


class GranianServer(MPServer):
    """Runs until it is told to stop.

    `reread`: gives the configuration anew at SIGHUP; what it refuses is logged and the old one stays.
    """

    def __init__(self, configuration: Configuration, *, reread: Callable[[], Configuration], log_level: str) -> None:
        logging.getLogger("_granian").addFilter(_is_news)
        self.configuration = configuration
        self._reread = reread
        self._editions = Editions()
        self._runs = Slots(cores())
        self._listener: socket.socket | None = None
        super().__init__(
            "coord",
            address=configuration.server.host,
            port=configuration.server.port,
            interface=Interfaces.WSGI,
            workers=configuration.server.workers,
            backpressure=connections_max(),
            http=HTTPModes.http1,
            websockets=False,
            log_level=LogLevels(log_level),
            log_dictconfig=_OUR_LOGS,
            log_access=False,
        )
        self._apply(configuration)

    def run(self) -> None:
        """Run the master until it is told to stop. Raises SystemExit when it failed."""
        multiprocessing.set_start_method("fork", force=True)  # the configuration crosses in memory
        for number in (signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)  # to gunicorn: one worker more, one less; to others: stand still
        self.on_startup(lambda: log_start(self.configuration))
        make_worker: Any = lambda: _Worker(self.configuration, self._reread, self._editions, self._runs)  # noqa: E731  called in the worker
        self.serve(_run_worker, make_worker, wrap_loader=False)

    def _apply(self, configuration: Configuration) -> None:
        """Take over what may change at a SIGHUP."""
        server, tls = configuration.server, configuration.server.tls
        self.configuration = configuration
        self.blocking_threads = server.threads
        self.http1_settings = HTTP1Settings(header_read_timeout=server.keep_alive_ms)  # counts from the last answer
        self.workers_kill_timeout = max(1, server.graceful_timeout_ms // MS_PER_S) + KILL_AFTER_S
        self.build_ssl_context(
            Path(tls.cert_file) if tls.cert_file else None,
            Path(tls.key_file) if tls.key_file else None,
            None,
            SSLProtocols.tls12,
            Path(tls.ca_file) if tls.ca_file else None,
            [],
            bool(tls.ca_file),
        )

    # ------------------------------------------------------------------------------------------------------- granian's master

    def signal_handler_interrupt(self, *_args: Any, **_kwargs: Any) -> None:
        """SIGTERM, SIGINT: note it; setting an event here could wait for a lock that the interrupted code holds."""
        self.interrupt_signal = True

    def signal_handler_reload(self, *_args: Any, **_kwargs: Any) -> None:
        """SIGHUP: note it."""
        self.reload_signal = True

    def _init_shared_socket(self) -> None:
        """Let all workers accept from one socket: what waits on it outlives each of them."""
        self._listener = open_listener(self.configuration, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._shd = SocketHolder(os.dup(self._listener.fileno()), False, BACKLOG)  # type: ignore[call-arg, assignment]  # not in its stub
        self._sso = None

    def _drop_shared_socket(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _serve_loop(self, spawn_target: Any, target_loader: Any) -> None:
        """Replace who dies and read the configuration again, until told to stop."""
        while not self.interrupt_signal:
            self.main_loop_interrupt.wait(LOOK_S)
            self.main_loop_interrupt.clear()
            while self.interrupt_children and not self.interrupt_signal:
                self._replace_dead(self.interrupt_children.pop(0), spawn_target, target_loader)
            if self.reload_signal and not self.interrupt_signal:
                self.reload_signal = False
                self._reload(spawn_target, target_loader)
        self.interrupt_children.clear()

    def _replace_dead(self, index: int, spawn_target: Any, target_loader: Any) -> None:
        dead = self.wrks[index]
        dead.join()
        if dead.inner.exitcode == BOOT_FAILED:
            _LOG.error("a worker could not start, so the coordinator stops")
            self.wrks.pop(index)
            self.shutdown(exit_code=1)  # type: ignore[no-untyped-call]  # granian's
        if time.monotonic() - dead.birth < YOUNG_S:
            time.sleep(YOUNG_S)
        if not self.interrupt_signal:
            self._start_worker(index, spawn_target, target_loader)

    def _start_worker(self, index: int, spawn_target: Any, target_loader: Any) -> None:
        self.wrks[index] = worker = self._spawn_worker(index, spawn_target, target_loader)
        worker.start()

    def _reload(self, spawn_target: Any, target_loader: Any) -> None:
        before = self.configuration
        news = news_of_access(before, self._reread)
        if isinstance(news, Configuration):
            self.configuration = news
            self._editions.next()
            for worker in self.wrks:
                with contextlib.suppress(ProcessLookupError):  # it has just died; its successor knows
                    os.kill(worker.inner.pid, signal.SIGHUP)
        if news != "other":
            return
        try:
            self._apply(self._reread())
        except ConfigurationError as error:
            _LOG.error("the configuration is refused, the old one stays", problems=[str(each) for each in error.problems])
            return
        except OSError as error:  # of the certificate
            self._apply(before)
            _LOG.error("the configuration is refused, the old one stays", problems=[f"server.tls: {error}"])
            return
        _LOG.info("configuration read again")
        server = self.configuration.server
        if (server.host, server.port, server.workers) != (before.server.host, before.server.port, before.server.workers):
            _LOG.warning("server.host, server.port and server.workers change with the next start of engine granian")
        for index in range(self.workers):
            old = self.wrks[index]
            if self.configuration.store.type == "memory":  # never two stores at once
                self._end(old)
                self._start_worker(index, spawn_target, target_loader)
            else:
                self._start_worker(index, spawn_target, target_loader)
                self._end(old)

    def _end(self, worker: WorkerProcess) -> None:
        worker.terminate()
        worker.join(self.workers_kill_timeout)
        if worker.is_alive():
            _LOG.warning("a worker did not end in time and is killed", pid=worker.inner.pid)
            worker.kill()
            worker.join()


class _Worker:
    """What one worker process has: its services and the app around them; made in that process."""

    def __init__(
        self, configuration: Configuration, reread: Callable[[], Configuration], editions: Editions, runs: Slots
    ) -> None:
        self._configuration = configuration
        self._reread = reread
        self._renewing = threading.Lock()
        self._authenticator = authenticator_of(configuration, runs)
        signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=self._renew_access, name="renewal", daemon=True).start())
        if editions.is_outdated():
            self._renew_access()
        self.services: Services = build(configuration)
        self.app: App = create_app(self.services, self._authenticator)

    def _renew_access(self) -> None:
        """Put users and token secrets that changed in force; what is under way is not disturbed."""
        with self._renewing:  # of two at once, the one that read first must not win
            news = news_of_access(self._configuration, self._reread)
            if isinstance(news, Configuration):
                self._configuration = news
                self._authenticator.replace(news.api)
                _LOG.info("users and token secrets read again")

    def run_until_told(self, spawn: Callable[[Callable[[], App]], None]) -> None:
        """Serve until SIGTERM, having told the services first."""
        own_signals = granian._signals.set_sync_signals  # noqa: SLF001  where granian lets a worker hear SIGTERM

        def told_first() -> Any:
            event = own_signals()  # type: ignore[no-untyped-call]  # granian's
            stop = signal.getsignal(signal.SIGTERM)

            def terminate(number: int, frame: FrameType | None) -> None:
                self.services.terminating = True
                if callable(stop):
                    stop(number, frame)

            signal.signal(signal.SIGTERM, terminate)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the master decides
            return event

        granian._signals.set_sync_signals = told_first  # noqa: SLF001  as above
        self.services.start()
        threading.Thread(target=_end_with_the_master, args=(os.getppid(),), name="master's watch", daemon=True).start()
        settle_memory()
        try:
            spawn(lambda: self.app)
        finally:
            self.services.stop()


def _run_worker(worker_id: int, process_name: str | None, make_worker: Callable[[], _Worker], *rest: Any) -> None:
    """Run one worker, in its own process."""
    try:
        worker = make_worker()
    except Exception as error:  # noqa: BLE001  whatever it is, a worker more would meet it too
        _LOG.error("a worker could not make its services", exc_info=error)
        sys.exit(BOOT_FAILED)
    spawn = cast("Callable[..., None]", MPServer._spawn_wsgi_worker)  # noqa: SLF001  what `serve` runs if given nothing else
    worker.run_until_told(lambda give_app: spawn(worker_id, process_name, give_app, *rest))


def _end_with_the_master(master: int) -> None:
    """End this process once its master is gone: nobody would replace it, and its port could not be had again."""
    while os.getppid() == master:
        time.sleep(PARENT_LOOK_S)
    _LOG.error("the master process is gone, so this worker stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out that many threads are many: they wait for the store, and make its batches larger."""
    return "Python threads" not in str(record.msg)
