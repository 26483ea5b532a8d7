"""What the threads of a gunicorn worker do: answer requests that are whole, one by one or, heartbeats, several in one go."""

from __future__ import annotations

import contextlib
import uuid
from functools import partial
from typing import Any, Final

import structlog
from gunicorn.http.errors import ConfigurationProblem, NoMoreData, ParseException
from gunicorn.workers.gthread import ThreadWorker

from coord.http.engines.connections import Connection, last_answer
from coord.http.engines.starting import settle_memory
from coord.http.together import Declined, Foreseeing, confirmed, foreseen
from coord.refusals import Code, Refused

ANSWER_S: Final = 10
"""A client that does not take its answer within this time is given up."""
TRIES: Final = 2
"""How often heartbeats are decided in one go, when others change their group at the same time."""
_LOG = structlog.get_logger(__name__)


class Answering(ThreadWorker):  # type: ignore[misc]  # gunicorn ships no types
    """The part of a worker that runs in its threads; the rest is the main loop's (`coord.http.engines.worker`)."""

    wsgi: Any

    def load_wsgi(self) -> None:
        """Load the app, and have each request told whether its answer is kept back."""
        super().load_wsgi()
        self.wsgi = foreseen(self.wsgi, of=lambda environ: environ["gunicorn.socket"].foreseeing)
        settle_memory()

    def handle(self, conn: Connection) -> bool:
        """Answer the request that was handed over, in a thread; says whether the connection goes on."""
        goes_on = self._answer(conn)
        conn.sock.foreseeing = None
        return self._send(conn) and goes_on

    def handle_together(self, conns: list[Connection]) -> list[bool | None]:
        """Answer heartbeats, in a thread, by one touch for all; says of each whether its connection goes on.

        None for one that another thread goes on with: it may have to wait for more than that, and is run once more, or its client
        is slow. Where the group has moved, all are decided once more on what it is now, in one go too.
        """
        outcomes: list[bool | None] = [None] * len(conns)
        places = list(range(len(conns)))
        for _ in range(TRIES):
            places = self._try_together(conns, places, outcomes)
        for place in places:
            self.enqueue_req(conns[place])
        return outcomes

    def _try_together(self, conns: list[Connection], places: list[int], outcomes: list[bool | None]) -> list[int]:
        """Answer those at `places`; gives the places of those that rested on what is no longer so."""
        requests = {place: Foreseeing() for place in places}
        going_on: dict[int, bool] = {}
        for place, request in requests.items():
            conn = conns[place]
            conn.sock.foreseeing = request
            try:
                going_on[place] = self._answer(conn)
            except Declined:
                self._take_back(conn)
                self.enqueue_req(conn)
        answered = [requests[place] for place in going_on]
        left: list[int] = []
        for (place, goes_on), request, holds in zip(going_on.items(), answered, _confirmed(answered), strict=True):
            if holds:
                conns[place].sock.foreseeing = None
                outcomes[place] = self._offer(conns[place], goes_on=goes_on)
                continue
            self._take_back(conns[place])
            if request.failure is None:
                left.append(place)
            else:
                conns[place].sock.foreseeing = request
                self.enqueue_req(conns[place])
        return left

    def _take_back(self, conn: Connection) -> None:
        conn.begin_again()
        conn.sock.foreseeing = None

    def _offer(self, conn: Connection, *, goes_on: bool) -> bool | None:
        """Send the answer; who does not take it keeps nobody waiting but a thread."""
        try:
            if conn.sock.offer():
                return goes_on
        except OSError as error:
            _tell_lost(conn, error)
            return False
        done = self.tpool.submit(lambda: self._send(conn) and goes_on)
        done.add_done_callback(partial(self.method_queue.defer, self.finish_request, conn))
        return None

    def _answer(self, conn: Connection) -> bool:
        """Run a request; the answer is held. Says whether the connection may go on after it."""
        request = None
        try:
            try:
                request = next(conn.parser)
                request._expected_100_continue = False  # noqa: SLF001  said by the poller, where it was of use
                goes_on = bool(self.handle_request(request, conn))
            except (NoMoreData, StopIteration, OSError):
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, the client is told, and the log
                self.handle_error(request, conn.sock, conn.client, error)
                return False
            return goes_on and not conn.ends_after_answer and conn.was_read_to_its_end()
        except (NoMoreData, StopIteration, OSError) as error:
            _tell_lost(conn, error)
        return False

    def _send(self, conn: Connection) -> bool:
        """Send the answer that is held; says whether the client took it."""
        try:
            conn.sock.flush()
        except OSError as error:
            _tell_lost(conn, error)
            return False
        return True

    def handle_error(self, req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        """Answer a request that never reached the app, in the same form as any other error."""
        request_id = str(uuid.uuid4())
        if isinstance(exc, ParseException) and not isinstance(exc, ConfigurationProblem):
            kind = type(exc).__name__  # what was sent may be a secret, and is neither logged nor sent back
            _LOG.info("malformed request", request_id=request_id, detail=kind)
            refused = Refused(Code.INVALID_REQUEST, f"the request is no well-formed HTTP: {kind}")
        else:
            _LOG.error("internal error", request_id=request_id, exc_info=exc)
            refused = Refused(Code.INTERNAL_ERROR, f"the coordinator has a bug; its log has requestId {request_id}")
        with contextlib.suppress(OSError):  # the sender may be gone
            client.sendall(last_answer(refused, request_id))


def _confirmed(foreseeing: list[Foreseeing]) -> list[bool]:
    """Say of each whether its answer may be sent. A bug costs the short way only."""
    try:
        return confirmed(foreseeing)
    except Exception as error:  # noqa: BLE001  each is run once more, and says what it is
        _LOG.error("internal error", exc_info=error)
        return [False] * len(foreseeing)


def _tell_lost(conn: Connection, error: Exception) -> None:
    if isinstance(error, TimeoutError):
        _LOG.info("a connection is given up: the client did not take its answer", client=conn.client, seconds=ANSWER_S)
    else:
        _LOG.debug("connection lost", detail=f"{type(error).__name__}: {error}")
