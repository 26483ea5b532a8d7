"""One line an event, one pipeline for all, no secret in it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time
import warnings
from typing import Any

import pytest
import structlog
from gunicorn.config import Config

from coord.observability.gunicorn_logging import GunicornLogger
from coord.observability.logging import FIELD_NAMES, configure, redact_text

MARKER = "m4rker-s3cret"


@pytest.fixture
def out() -> io.StringIO:
    """Where the lines go."""
    return io.StringIO()


def lines_of(out: io.StringIO) -> list[dict[str, Any]]:
    """Read each line as JSON."""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_the_designs_fields(out: io.StringIO) -> None:
    """Fields written in snake_case leave in camelCase; the coordinator's id and a UTC time are on each line."""
    configure(coordinator_id="c-1", stream=out)
    structlog.get_logger("coord.core").info("member joined", revision=7, reason="why", **dict.fromkeys(FIELD_NAMES, "x"))
    (line,) = lines_of(out)
    assert {*FIELD_NAMES.values(), "revision", "reason", "event", "level", "logger", "timestamp"} == set(line)
    assert line["timestamp"].endswith("Z")
    assert (line["event"], line["level"], line["logger"], line["revision"]) == ("member joined", "info", "coord.core", 7)
    out.truncate(0)
    out.seek(0)
    structlog.get_logger("x").info("hello")
    assert lines_of(out)[0]["coordinatorId"] == "c-1"


def test_the_standard_library_goes_the_same_way(out: io.StringIO) -> None:
    """Libraries' lines, their extras and Python's warnings are JSON too, each once."""
    configure(coordinator_id="c-1", stream=out)
    configure(coordinator_id="c-2", stream=out)
    logging.getLogger("redis.connection").warning("lost %s", "it", extra={"attempt": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", stacklevel=1)
    first, second = lines_of(out)
    assert (first["event"], first["logger"], first["attempt"], first["coordinatorId"]) == (
        "lost it",
        "redis.connection",
        2,
        "c-2",
    )
    assert second["logger"] == "py.warnings"


def test_gunicorn_goes_the_same_way(out: io.StringIO) -> None:
    """Gunicorn's logger adds no handler of its own; a reload of its settings neither."""
    configure(stream=out)
    settings = Config()
    settings.set("accesslog", "-")
    logger = GunicornLogger(settings)
    logger.info("Listening at: %s", "http://127.0.0.1:1")
    logger.access_log.info("GET /livez")
    logger.setup(settings)
    logger.error("again")
    assert [line["event"] for line in lines_of(out)] == ["Listening at: http://127.0.0.1:1", "GET /livez", "again"]
    assert not logger.error_log.handlers


@pytest.mark.parametrize(("level", "seen"), [("debug", 4), ("INFO", 3), ("warning", 2), ("error", 1)])
def test_level(out: io.StringIO, level: str, seen: int) -> None:
    """The threshold holds for our lines and for libraries'."""
    configure(level=level, stream=out)
    for log in (structlog.get_logger("a"), logging.getLogger("b")):
        log.debug("x")
        log.info("x")
        log.warning("x")
        log.error("x")
    assert len(lines_of(out)) == 2 * seen


def test_unknown_settings_are_refused() -> None:
    """The message says what is allowed."""
    with pytest.raises(ValueError, match="one of debug, info"):
        configure(level="loud")
    with pytest.raises(ValueError, match="json or console"):
        configure("xml")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_values_cannot_start_lines_or_colour_the_terminal(out: io.StringIO, log_format: Any) -> None:
    """A caller's newline, escape sequence, NUL or lone surrogate stays inside its value."""
    configure(log_format, stream=out)
    structlog.get_logger("a").info(
        "hello\nWORLD", member_id="x\r\n\x1b[31m\x00\u2028\ud800\u202e\u2066", inner={"k\n": ["a\nb"]}, number=float("nan")
    )
    text = out.getvalue()
    assert text.count("\n") == 1
    assert not set("\r\x1b\x00\u2028\ud800\u202e\u2066") & set(text)


def test_the_console_is_for_people(out: io.StringIO) -> None:
    """Text, key=value, and the traceback on its own lines."""
    configure("console", stream=out)
    try:
        raise ValueError(f"password={MARKER}")
    except ValueError:
        structlog.get_logger("a").exception("it broke", stream_prefix="orders")
    text = out.getvalue()
    assert "streamPrefix=orders" in text
    assert "\nTraceback (most recent call last)" in text
    assert MARKER not in text


SECRETS = [
    {"password": MARKER},
    {"adminPassword": MARKER},
    {
        "passwd": MARKER,
        "Authorization": MARKER,
        "token_secret": MARKER,
        "access-token": MARKER,
        "Cookie": MARKER,
        "api_key": MARKER,
    },
    {"token": 12345},
    {"headers": {"Authorization": f"Bearer {MARKER}", "X-Auth-Token": MARKER}},
    {"headers": [("X-Api-Key", MARKER), ("Cookie", MARKER)]},
    {"body": f'{{"username": "a", "password": "{MARKER}"}}'},
    {"body": f'{{"password":"a\\"{MARKER}"}}'},
    {"query": f"limit=3&token={MARKER}&x=1"},
    {"url": f"redis://user:{MARKER}@host:6379/0"},
    {"url": f"redis://user:x/{MARKER}@host:6379/0"},
    {"error": ConnectionError(f"cannot reach postgresql+x://u:{MARKER}@h/db")},
    {"header": f"Basic {MARKER}"},
    {"text": f"sent Authorization: {MARKER} to it"},
    {"cut": f"'password': '{MARKER} and so on"},
    {"escaped": f'{{\\"password\\": \\"{MARKER}\\"}}'},
    {"raw": [(b"authorization", MARKER.encode())]},
    {"password_hash": MARKER, "text": f"password_hash={MARKER}"},
    {"jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi" + MARKER + "." + MARKER},
    {"a": {"b": [{"c": {"secret": MARKER}}]}},
]


@pytest.mark.parametrize("fields", SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("log_format", ["json", "console"])
def test_k8_secrets_never_reach_the_log(out: io.StringIO, fields: dict[str, Any], log_format: Any) -> None:
    """Under a telling key, inside a URL, a header, a body, a query, an exception; ours or a library's."""
    configure(log_format, level="debug", stream=out)
    structlog.get_logger("a").debug("x", **fields)
    logging.getLogger("b").debug("%s", fields)
    assert MARKER not in out.getvalue()
    assert "12345" not in out.getvalue()
    assert "******" in out.getvalue()


@pytest.mark.parametrize(
    "text",
    ["the token of revision 7", "basic", "http://127.0.0.1:8080/coord/v1", "orders:{shard}", "mail a@b.c", "a=b password", ""],
)
def test_ordinary_text_stays(text: str) -> None:
    """What only mentions a secret is no secret."""
    assert redact_text(text) == text


def test_empty_values_and_switches_stay(out: io.StringIO) -> None:
    """Whether a secret is set is worth knowing."""
    configure(stream=out)
    structlog.get_logger("a").info("x", password="", token=None, has_token=True)
    (line,) = lines_of(out)
    assert (line["password"], line["token"], line["has_token"]) == ("", None, True)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 20_000,
        "a-" * 10_000,
        "eyJaaaa-" * 3000,
        "a://" * 5000,
        "Bearer " * 3000,
        "password" * 3000,
        'password="\\' * 2000,
        'password="' + "\\" * 20_000,
        "token:" + " " * 20_000,
    ],
)
def test_no_text_holds_up_the_log(text: str) -> None:
    """Whatever a caller sends, one line costs milliseconds and has a bounded length."""
    start = time.thread_time()
    assert len(redact_text(text)) < 20_000
    assert time.thread_time() - start < 0.5


def test_endless_structures_end(out: io.StringIO) -> None:
    """Depth and width have bounds."""
    configure(stream=out)
    endless: list[object] = []
    endless.append(endless)
    structlog.get_logger("a").info("x", endless=endless, wide=list(range(5000)), odd={1: {2, 3}})
    (line,) = lines_of(out)
    assert len(line["wide"]) == 1000
    assert "…" in str(line["endless"])


FORKING = """
import logging, os, sys, threading
import structlog
from coord.observability.logging import configure

configure(coordinator_id="c-1")
log = structlog.get_logger("fork")
stop = threading.Event()
def chatter():
    while not stop.is_set():
        logging.getLogger("chatter").info("x" * 200)
thread = threading.Thread(target=chatter)
thread.start()
children = []
for number in range(5):
    pid = os.fork()
    if pid == 0:
        log.info("child", number=number)
        sys.stdout.flush()
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
stop.set()
thread.join()
log.info("parent", codes=codes)
"""


def test_logs_after_a_fork() -> None:
    """Children made while another thread logs log on, each line whole and once."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(line["number"] for line in lines if line["event"] == "child") == [0, 1, 2, 3, 4]
    assert [line["codes"] for line in lines if line["event"] == "parent"] == [[0] * 5]


def test_stdout_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a stream the lines follow `sys.stdout`, also after it was replaced."""
    configure()
    structlog.get_logger("a").info("first")
    assert json.loads(capsys.readouterr().out)["event"] == "first"
    replaced = io.StringIO()
    before, sys.stdout = sys.stdout, replaced
    try:
        structlog.get_logger("a").info("second")
    finally:
        sys.stdout = before
    assert lines_of(replaced)[0]["event"] == "second"
