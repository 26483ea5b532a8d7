"""A gunicorn worker of ours: clients wait on the poller, and only a whole request gets a thread.

gunicorn's gthread reads a request in the thread that answers it, so that a few dozen connections that say nothing, or say it
slowly, hold every thread. Here the main loop collects the bytes; a thread parses what is there, answers, and never waits for a
client to speak (`coord.http.engines.answering`). Also: a stop that says so at once.
Source: design page `performance.md`, "Server"; scenarios J8, J10.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any, Final

import structlog
from gunicorn import sock as gunicorn_sock
from gunicorn.workers.gthread import STOP_KEEPALIVE_LINGER

from coord.http.engines.answering import ANSWER_S, Answering
from coord.http.engines.connections import WOULD_BLOCK, Connection, Waiting
from coord.http.engines.finished import Finished
from coord.http.engines.gathering import SLOW_S, Gathering
from coord.http.together import is_heartbeat

ARRIVAL_S: Final = 30
"""A request that is not there so long after its first byte is given up; so is a TLS handshake."""
LINGER_S: Final = 2
"""So long, what a client still sends after its last answer is thrown away: a close over unread bytes would destroy the answer."""
LINGER_BYTES_MAX: Final = 8 * 1024 * 1024
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""No more than this is kept of requests that are not whole yet; the largest is given up first."""
RECEIVE_BYTES: Final = 65_536
NOTIFY_EVERY_S: Final = 0.5
_LOG = structlog.get_logger(__name__)


class CoordinatorWorker(Answering):
    """`app` is a `coord.http.engines.gunicorn.CoordinatorServer`.

    A connection is idle, arriving or lingering, or it is with a thread, and then on none of these lists. Only the main loop
    moves it, so nothing here is locked.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.method_queue = Finished()
        self._notified_at_s = 0.0
        self.idle = Waiting(self.cfg.keepalive)
        self.arriving = Waiting(ARRIVAL_S)
        self.lingering = Waiting(LINGER_S)
        self.kept_bytes = 0
        self.beating: Gathering[Connection] = Gathering()
        self.tls: ssl.SSLContext | None = None

    def init_process(self) -> None:
        """Prepare, then run until the end (in the worker)."""
        if self.cfg.is_ssl:
            self.tls = gunicorn_sock.ssl_context(self.cfg)
        super().init_process()

    # --------------------------------------------------------------------------------------------------- a connection's life

    def accept(self, listener: Any) -> None:
        """Take one new connection."""
        try:
            sock, client = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self.nr_conns += 1
        sock.setblocking(False)
        limit = self.app.configuration.api.max_body_bytes
        conn = Connection(self.cfg, sock, client, listener.getsockname(), max_body_bytes=limit, answer_s=ANSWER_S)
        if self.tls:
            self.arriving.add(conn)
            self._guarded(conn, self._begin_tls)
        else:
            self._be_idle(conn)
            self._guarded(conn, self._receive)

    def _begin_tls(self, conn: Connection) -> None:
        assert self.tls is not None, "only with a certificate"
        quiet = self.cfg.suppress_ragged_eofs
        conn.use(self.tls.wrap_socket(conn.input, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=quiet))
        self._shake_hands(conn)

    def _shake_hands(self, conn: Connection) -> None:
        assert isinstance(conn.input, ssl.SSLSocket), "TLS has begun"
        try:
            conn.input.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(conn, self._shake_hands)
        except ssl.SSLWantWriteError:
            self._watch(conn, self._shake_hands, selectors.EVENT_WRITE)
        else:
            self._unwatch(conn)
            self.arriving.remove(conn)
            self._be_idle(conn)
            self._receive(conn)

    def _receive(self, conn: Connection) -> None:
        """Take what has come in; once a request is whole it goes to a thread."""
        if conn.is_served:  # more has come in, or the client is gone: not to be heard of again before the answer
            self._unwatch(conn)
            return
        while True:
            try:
                data = conn.input.recv(RECEIVE_BYTES)
            except WOULD_BLOCK:
                break
            if not data:
                self._close(conn)
                return
            conn.arrival.feed(data)
            if conn.arrival.is_whole:
                self._dispatch(conn)
                return
            if not self.tls:  # the poller tells when there is more; what TLS has decrypted already, it does not see
                break
        if len(conn.arrival):
            self._be_arriving(conn)
        if not conn.is_closed:
            self._watch(conn, self._receive)

    def _be_idle(self, conn: Connection) -> None:
        self.idle.add(conn)
        if len(self.idle) > self.max_keepalived:
            self._close(self.idle.first())

    def _be_arriving(self, conn: Connection) -> None:
        self.idle.remove(conn)
        self.arriving.add(conn)
        self._count(conn, len(conn.arrival))
        if conn.arrival.wants_continue and not conn.was_told_to_continue:
            conn.was_told_to_continue = True
            conn.input.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while self.kept_bytes > KEPT_BYTES_MAX:
            largest = max(self.arriving, key=lambda each: each.kept_bytes)
            _LOG.warning("a request is given up: too much is kept of requests that are not whole", kept_bytes=self.kept_bytes)
            self._close(largest)

    def _count(self, conn: Connection, kept_bytes: int) -> None:
        self.kept_bytes += kept_bytes - conn.kept_bytes
        conn.kept_bytes = kept_bytes

    def _dispatch(self, conn: Connection) -> None:
        """Give the request that is whole to a thread. The poller goes on watching: mostly there is nothing until the answer."""
        conn.is_served = True
        self.idle.remove(conn)
        self.arriving.remove(conn)
        self._count(conn, 0)
        if is_heartbeat(conn.take_request()):
            self.beating.add(conn)
        else:
            self.enqueue_req(conn)

    def wait_for_and_dispatch_events(self, timeout: float) -> None:
        """See what has happened, then have heartbeats answered."""
        super().wait_for_and_dispatch_events(min(timeout, SLOW_S) if self.beating else timeout)
        for number, conns in self.beating.ready():
            done = self.tpool.submit(self.handle_together, conns)
            done.add_done_callback(partial(self.method_queue.defer, self._finish_together, number, conns))

    def _finish_together(self, number: int, conns: list[Connection], done: Future[list[bool | None]]) -> None:
        self.beating.end(number)
        if done.cancelled() or done.exception() is not None:
            _LOG.error("internal error", exc_info=None if done.cancelled() else done.exception())
            outcomes: list[bool | None] = [False] * len(conns)
        else:
            outcomes = done.result()
        for conn, goes_on in zip(conns, outcomes, strict=True):
            if goes_on is not None:
                self._finish(conn, goes_on=goes_on)

    def finish_request(self, conn: Connection, done: Future[bool]) -> None:
        """Let a connection wait for its next request, or end."""
        self._finish(conn, goes_on=not done.cancelled() and done.exception() is None and done.result())

    def _finish(self, conn: Connection, *, goes_on: bool) -> None:
        conn.is_served = False
        self._guarded(conn, self._go_on if goes_on else self._linger)

    def _go_on(self, conn: Connection) -> None:
        if conn.arrival.is_whole:
            self._dispatch(conn)
            return
        self._be_idle(conn)
        if not self.alive:
            self.idle.cap(time.monotonic() + STOP_KEEPALIVE_LINGER)
        if conn.is_closed:
            return
        if self.tls or len(conn.arrival):
            self._receive(conn)
        else:
            self._watch(conn, self._receive)

    def _linger(self, conn: Connection) -> None:
        """End a connection so that its last answer arrives."""
        if isinstance(conn.input, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                conn.input.unwrap()  # says that this is the end; whether the client says so too does not matter
        conn.input.shutdown(socket.SHUT_WR)
        self.lingering.add(conn)
        self._throw_away(conn)

    def _throw_away(self, conn: Connection) -> None:
        try:
            data = conn.input.recv(RECEIVE_BYTES)
        except WOULD_BLOCK:
            data = None
        conn.thrown_away_bytes += len(data or b"")
        if data == b"" or conn.thrown_away_bytes > LINGER_BYTES_MAX:
            self._close(conn)
        else:
            self._watch(conn, self._throw_away)

    def _close(self, conn: Connection) -> None:
        if conn.is_closed:
            return
        self._unwatch(conn)
        for waiting in (self.idle, self.arriving, self.lingering):
            waiting.remove(conn)
        self._count(conn, 0)
        conn.is_closed = True
        self.nr_conns -= 1
        conn.input.close()

    # -------------------------------------------------------------------------------------------------------------- the poller

    def _watch(self, conn: Connection, act: Callable[[Connection], None], events: int = selectors.EVENT_READ) -> None:
        """Call `act` whenever the client says something (or, for EVENT_WRITE, takes something)."""
        if conn.watched_by == act and conn.watched_for == events:
            return
        change = self.poller.modify if conn.watched_by else self.poller.register
        change(conn.input, events, partial(self._guarded, conn, act))
        conn.watched_by, conn.watched_for = act, events

    def _unwatch(self, conn: Connection) -> None:
        if conn.watched_by:
            self.poller.unregister(conn.input)
            conn.watched_by = None

    def _guarded(self, conn: Connection, act: Callable[[Connection], None], _fileobj: Any = None) -> None:
        """Do something for a connection; what goes wrong ends that one, never the worker."""
        if conn.is_closed:  # by another event of the same round
            return
        try:
            act(conn)
        except (OSError, ValueError) as error:
            _LOG.debug("connection lost", detail=f"{type(error).__name__}: {error}")
            self._close(conn)
        except Exception as error:  # noqa: BLE001  a bug costs one connection, not everybody's
            _LOG.error("internal error", exc_info=error)
            self._close(conn)

    def notify(self) -> None:
        """Tell gunicorn's master that this worker lives; once in a while is enough."""
        now_s = time.monotonic()
        if now_s - self._notified_at_s > NOTIFY_EVERY_S:
            self._notified_at_s = now_s
            super().notify()

    def murder_keepalived(self, force: bool = False) -> None:  # noqa: FBT001, FBT002  gunicorn's signature
        """Close connections that were idle for too long, or all of them."""
        for conn in list(self.idle) if force else self.idle.expired():
            self._close(conn)

    def murder_pending(self) -> None:
        """Close connections whose request, or whose end, takes too long."""
        for conn in self.arriving.expired():
            _LOG.info("a request is given up: it was not whole in time", client=conn.client, seconds=ARRIVAL_S)
            self._close(conn)
        for conn in self.lingering.expired():
            self._close(conn)

    def _cap_keepalive(self, deadline: float) -> None:
        """Called when stopping: idle connections may send one more request until then."""
        self.idle.cap(deadline)

    # ------------------------------------------------------------------------------------------------------ the end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: what is under way is answered; heartbeats that come now are told RETRY, mutations 503."""
        self.app.terminate()
        super().handle_exit(sig, frame)

    def set_accept_enabled(self, enabled: bool) -> None:  # noqa: FBT001  gunicorn's signature
        """When stopping, take the connections that wait already, then close: who comes later is refused and not left hanging."""
        super().set_accept_enabled(enabled)
        if not enabled and not self.alive:
            for listener in self.sockets:
                self._accept_waiting(listener)
                listener.close()

    def _accept_waiting(self, listener: Any) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for _ in range(self.cfg.backlog):
                if not selector.select(0):
                    return
                self.accept(listener)
