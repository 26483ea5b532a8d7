"""When bytes are a whole request: however they are cut up, and never otherwise than the parser sees it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from hypothesis import given
from hypothesis import strategies as st

from coord.http.engines.arrival import HEAD_BYTES_MAX, Arrival
from coord.http.engines.connections import WholeRequest, read_to_its_end

MAX = 50
GET = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: t\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def arrival(*pieces: bytes) -> Arrival:
    made = Arrival(MAX)
    for piece in pieces:
        made.feed(piece)
    return made


@pytest.mark.parametrize(
    "data",
    [
        GET,
        b"\r\n" + GET,
        b"GET / HTTP/1.0\r\n\r\n",
        POST + b"Content-Length: 0\r\n\r\n",
        POST + b"content-length:  5 \r\n\r\n12345",
        POST + b"Content-Length: 50\r\n\r\n" + b"x" * 50,
        CHUNKED + b"0\r\n\r\n",
        CHUNKED + b"5\r\n12345\r\n0\r\n\r\n",
        CHUNKED + b'a;name="v"\r\n1234567890\r\n1\r\nx\r\n00\r\nTrailer: yes\r\n\r\n',
        POST + b"Transfer-Encoding: gzip, Chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_a_request_is_whole_with_its_last_byte(data: bytes) -> None:
    made = arrival(*(data[index : index + 1] for index in range(len(data) - 1)))
    assert not made.is_whole
    made.feed(data[-1:])
    assert (made.is_whole, made.is_cut) == (True, False)
    assert made.take() == data
    assert (made.is_whole, len(made)) == (False, 0)


@pytest.mark.parametrize(
    "data",
    [
        POST + b"Content-Length: 51\r\n\r\n",
        POST + b"Content-Length: 99999999999999\r\n\r\n",
        POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
        POST + b"Content-Length: +5\r\n\r\n",
        POST + b"Content-Length: 5, 5\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        POST + b"Transfer-Encoding: gzip\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"1\r\nxyz",
        CHUNKED + b"x" * 9000,
        CHUNKED + b"ffff\r\n" + b"x" * 6000,
        CHUNKED + b"1\r\nx\r\n" * 5000,
        CHUNKED + b"0\r\nT: " + b"x" * (HEAD_BYTES_MAX + 200),
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\nHost: t\n",
        b"GET /" + b"x" * 9000,
        POST + b"X: y\r\n" * (HEAD_BYTES_MAX // 6),
    ],
)
def test_what_is_refused_anyway_or_never_ends_is_not_waited_for(data: bytes) -> None:
    made = arrival(data)
    assert (made.is_whole, made.is_cut) == (True, True)
    assert made.take() == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        GET[:-1],
        POST + b"Content-Length: 5\r\n\r\n1234",
        CHUNKED + b"5",
        CHUNKED + b"5\r\n1234",
        CHUNKED + b"5\r\n12345\r\n0\r\n",
        CHUNKED + b"ff\r\n" + b"x" * 254,
    ],
)
def test_what_may_go_on_is_waited_for(data: bytes) -> None:
    assert not arrival(data).is_whole


@pytest.mark.parametrize(("expect", "wants"), [(b"100-continue", True), (b"100-Continue ", True), (b"200-ok", False)])
def test_a_sender_that_waits_for_100_continue_is_seen(expect: bytes, wants: bool) -> None:
    made = arrival(POST + b"Expect: " + expect + b"\r\nContent-Length: 5\r\n\r\n")
    assert made.wants_continue == wants
    made.feed(b"12345" + GET)
    made.take()
    assert not made.wants_continue


@dataclass(frozen=True)
class Sent:
    """A request and the body in it."""

    data: bytes
    body: bytes


def chunked(body: bytes, sizes: list[int], *, extension: bytes, trailers: bytes) -> bytes:
    data = b""
    for size in sizes:
        chunk, body = body[:size], body[size:]
        data += b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) if chunk else b""
    data += b"%X\r\n%b\r\n" % (len(body), body) if body else b""
    return data + b"0\r\n" + trailers + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    body = draw(st.binary(max_size=MAX))
    kind = draw(st.sampled_from(["none", "sized", "chunked"]))
    if kind == "none":
        return Sent(draw(st.sampled_from([GET, b"\r\n" + GET])), b"")
    if kind == "sized":
        return Sent(POST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), body)
    sizes = draw(st.lists(st.integers(1, 9), max_size=5))
    extension = draw(st.sampled_from([b"", b";a", b' ;a="b;c"']))
    trailers = draw(st.sampled_from([b"", b"T: x\r\n", b"T: x\r\nU: y\r\n"]))
    return Sent(CHUNKED + chunked(body, sizes, extension=extension, trailers=trailers), body)


def parsed(data: bytes) -> tuple[bytes, bool]:
    """Give the body that gunicorn's parser finds, and whether it saw the request end with the data. Raises as it does."""
    source = WholeRequest()
    parser = source.parser(Config(), ("127.0.0.1", 1))
    source.give(data)
    return next(parser).body.read(), read_to_its_end(parser, source)


@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 400), max_size=8))
def test_requests_in_a_row_come_out_one_by_one_however_they_are_cut_up(sent: list[Sent], cuts: list[int]) -> None:
    data = b"".join(each.data for each in sent)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    made, taken = Arrival(MAX), []
    for start, end in itertools.pairwise(places):
        made.feed(data[start:end])
        while made.is_whole:
            assert not made.is_cut
            taken.append(made.take())
    assert taken == [each.data for each in sent]
    assert [parsed(each) for each in taken] == [(each.body, True) for each in sent]


@given(requests(), st.integers(0, 200), st.binary(min_size=1, max_size=3), st.booleans())
def test_a_damaged_request_is_cut_where_the_parser_cuts_it_or_refused(sent: Sent, at: int, noise: bytes, instead: bool) -> None:
    """Else one request could be hidden in another: what the parser accepts, it reads to the end that was found here."""
    data = sent.data[:at] + noise + sent.data[at + len(noise) if instead else at :]
    made = arrival(data)
    if not made.is_whole or made.is_cut:
        return
    try:
        _, is_read_to_its_end = parsed(made.take())
    except (ParseException, OSError, StopIteration):
        return
    assert is_read_to_its_end
