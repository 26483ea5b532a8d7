"""`coord audit`: exports, the walk along the chain, and checkpoints, against what a real coordinator has written."""

from __future__ import annotations

import csv
import io
import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
import urllib3
from pyarrow import parquet

from coord.bootstrap import build
from coord.config import load
from coord.http.app import create_app
from coord.runtime.auditformats import COLUMNS
from tests.cli.conftest import Run, Served
from tests.http.face import Face
from tests.servers import free_port, private_redis

WHO = {"requestedBy": "tester", "reason": "a test"}


@pytest.fixture
def written(ask: Run, stream: str, served: Served) -> str:
    """A stream with two groups, one of them deleted, a scale and a refusal; somebody without credentials was there too."""
    assert ask("groups", "create", stream, "billing", "--shards", "2").exit_code == 0
    assert ask("groups", "create", stream, "gone").exit_code == 0
    assert ask("groups", "delete", stream, "gone", "--yes", "--reason", "a test").exit_code == 0
    assert ask("streams", "scale", stream, "--shards", "3", "--wait", "--reason", "=a test").exit_code == 0
    assert ask("groups", "create", stream, "billing").exit_code == 1
    assert urllib3.request("POST", f"{served.url}/streams/{stream}/scale", json=WHO, retries=False).status == 401
    return stream


@contextmanager
def copy_of(source_url: str) -> Iterator[tuple[str, redis.Redis]]:
    """A copy of all that a Redis holds, to be tampered with."""
    with private_redis() as copied, redis.Redis.from_url(source_url) as source, redis.Redis.from_url(copied.url) as copy:
        for key in source.scan_iter():
            if (dumped := source.dump(key)) is not None:
                copy.restore(key, 0, dumped)
        yield copied.url, copy


def exported(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- export


def test_lines_of_json_hold_all_of_a_stream_and_its_groups(run: Run, served: Served, written: str) -> None:
    done = run("audit", "export", written, "--redis-url", served.redis.url)
    assert done.exit_code == 0, done.output
    found = exported(done.stdout)
    assert [(each["consumerGroup"], each["action"], each["status"]) for each in found] == [
        (None, "SCALE_STREAM", 202),
        ("billing", "CREATE_GROUP", 201),
        ("billing", "CREATE_GROUP", 409),
        ("gone", "CREATE_GROUP", 201),
        ("gone", "DELETE_GROUP", 200),
    ]
    assert all(tuple(each) == COLUMNS for each in found)
    assert "5 entries exported" in done.stderr
    only = run("audit", "export", written, "gone", "--redis-url", served.redis.url, "--outcome", "SUCCESS")
    assert [each["action"] for each in exported(only.stdout)] == ["CREATE_GROUP", "DELETE_GROUP"]


def test_everything_holds_what_is_on_no_log_too(run: Run, served: Served, written: str) -> None:
    found = exported(run("audit", "export", "--redis-url", served.redis.url).stdout)
    assert [each["status"] for each in found if each["streamPrefix"] == written and each["revision"] is None] == [401]


def test_times_and_actions_narrow_it_down(run: Run, served: Served, written: str) -> None:
    url = ("--redis-url", served.redis.url)
    found = exported(run("audit", "export", written, "billing", *url).stdout)
    later = found[1]["timestamp"]
    assert found[0]["timestamp"] < later
    assert exported(run("audit", "export", written, "billing", "--since", later, *url).stdout) == found[1:]
    assert exported(run("audit", "export", written, "billing", "--until", later, *url).stdout) == found[:1]
    assert exported(run("audit", "export", written, "--action", "SCALE_STREAM", *url).stdout)[0]["status"] == 202
    assert run("audit", "export", "--since", "yesterday", *url).exit_code == 2


def test_csv_is_for_spreadsheets_and_no_formula_survives(run: Run, served: Served, written: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.csv"
    done = run("audit", "export", written, "--format", "csv", "--out", str(file), "--redis-url", served.redis.url)
    assert (done.exit_code, done.stdout) == (0, "")
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["reason"] == "'=a test"
    assert [each.name for each in tmp_path.iterdir()] == ["audit.csv"]


def test_parquet_has_types(run: Run, served: Served, written: str, tmp_path: Path) -> None:
    file = tmp_path / "audit.parquet"
    done = run("audit", "export", written, "--format", "parquet", "--out", str(file), "--redis-url", served.redis.url)
    assert done.exit_code == 0, done.output
    table = parquet.read_table(file)
    assert tuple(table.column_names) == COLUMNS
    assert table.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert table.schema.field("status").type == pa.int64()
    rows = table.to_pylist()
    lines = exported(run("audit", "export", written, "--redis-url", served.redis.url).stdout)
    assert [each["roles"] for each in rows] == [each["roles"] for each in lines]
    assert [each["status"] for each in rows] == [202, 201, 409, 201, 200]
    assert rows[0]["timestamp"].isoformat(timespec="milliseconds").replace("+00:00", "Z") == lines[0]["timestamp"]


def test_an_export_that_is_cut_short_leaves_no_file(run: Run, served: Served, written: str, tmp_path: Path) -> None:
    with copy_of(served.redis.url) as (url, copy):
        copy.xadd(f"redis-stream:coord:{{{written}:gone}}:events", {"event": '{"type":"AdminRequest"', "chain": "x"}, id="99-0")
        done = run("audit", "export", written, "--out", str(tmp_path / "a.jsonl"), "--redis-url", url)
        assert done.exit_code == 1
        assert "99-0" in done.stderr
        assert list(tmp_path.iterdir()) == []


def test_an_export_into_a_folder_that_is_not_there_is_wrong_usage(run: Run, served: Served) -> None:
    done = run("audit", "export", "--out", "nowhere/a.csv", "--redis-url", served.redis.url)
    assert (done.exit_code, "--out" in done.stderr) == (2, True)


def test_the_http_stream_is_the_same(run: Run, served: Served, written: str) -> None:
    headers = {**urllib3.make_headers(basic_auth="admin:password"), "Accept": "application/x-ndjson"}
    answer = urllib3.request("GET", f"{served.url}/monitoring/streams/{written}/groups/gone/audit", headers=headers)
    assert answer.data.decode() == run("audit", "export", written, "gone", "--redis-url", served.redis.url).stdout


# -- verify


def test_sound_logs_hold_deleted_groups_too(run: Run, served: Served, written: str) -> None:
    done = run("audit", "verify", written, "--redis-url", served.redis.url, "--output", "json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["holds"] is True
    assert [(each["consumerGroup"], each["holds"], each["badRevision"]) for each in told["logs"]] == [
        (None, True, None),
        ("billing", True, None),
        ("gone", True, None),
    ]
    assert "holds" in run("audit", "verify", written, "--redis-url", served.redis.url).stdout
    assert run("audit", "verify", "never-was", "--redis-url", served.redis.url).exit_code == 1


def entries_of(copy: redis.Redis, log: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: Any = copy.xrange(log)
    return [(identifier, dict(fields)) for identifier, fields in found]


def put_back(copy: redis.Redis, log: str, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
    copy.delete(log)
    for identifier, fields in entries:
        copy.xadd(log, fields, id=identifier)  # type: ignore[arg-type]  # bytes are what it takes


@pytest.mark.parametrize("how", ["flip", "drop", "insert", "cut"])
def test_tampering_is_found_and_the_first_bad_revision_named(run: Run, served: Served, written: str, how: str) -> None:
    """Exit code 1. What was cut off with the stored head shows by a checkpoint alone: see below."""
    log = f"redis-stream:coord:{{{written}}}:stream:events"
    with copy_of(served.redis.url) as (url, copy):
        entries = entries_of(copy, log)
        at = next(index for index, (identifier, _) in enumerate(entries) if identifier.startswith(b"4-"))
        identifier, fields = entries[at]
        if how == "flip":
            body = fields[b"event"]
            entries[at] = (identifier, {**fields, b"event": body[:50] + bytes([body[50] ^ 1]) + body[51:]})
        elif how == "drop":
            del entries[at]
        elif how == "insert":
            following = next(index for index, (each, _) in enumerate(entries) if each.startswith(b"5-"))
            last = entries[following - 1][0].split(b"-")[1]
            entries.insert(following, (b"4-%d" % (int(last) + 1), fields))
        else:
            entries = entries[:at]
        put_back(copy, log, entries)
        done = run("audit", "verify", written, "--redis-url", url)
        assert done.exit_code == 1
        assert f"{written}: revision 4: " in done.stdout
        assert done.stdout.count("holds") == 2, "the groups' logs are walked all the same"
        told = json.loads(run("audit", "verify", written, "--redis-url", url, "-o", "json").stdout)
        assert [(each["holds"], each["badRevision"]) for each in told["logs"]] == [(False, 4), (True, None), (True, None)]


def test_a_long_walk_tells_how_far_it_has_come(run: Run, served: Served, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, where it disturbs no reader of the result."""
    monkeypatch.setattr("coord.cli.direct.PROGRESS_INTERVAL_S", 0.0)
    done = run("audit", "verify", written, "--redis-url", served.redis.url, "-o", "json")
    total = sum(each["entries"] for each in json.loads(done.stdout)["logs"])
    assert f"verifying … {total} entries of 3 logs" in done.stderr


# -- checkpoints


@pytest.fixture
def keys(run: Run, tmp_path: Path) -> tuple[str, str]:
    """The private and the public key."""
    private = tmp_path / "audit.key"
    assert run("audit", "key", "--out", str(private)).exit_code == 0
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert run("audit", "key", "--out", str(private)).exit_code == 2, "a key is never overwritten"
    return str(private), f"{private}.pub"


def test_a_checkpoint_shows_a_tail_that_was_cut_with_its_head(
    run: Run, served: Served, written: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    """The store as it was a while ago, restored from a backup: sound in itself."""
    private, public = keys
    log = f"redis-stream:coord:{{{written}:gone}}:events"
    kept = tmp_path / "checkpoint.json"
    assert run("audit", "checkpoint", "--key", private, "--out", str(kept), "--redis-url", served.redis.url).exit_code == 0
    asked = ("--checkpoint", str(kept), "--public-key", public)
    assert run("audit", "verify", written, *asked, "--redis-url", served.redis.url).exit_code == 0
    with copy_of(served.redis.url) as (url, copy):
        entries = entries_of(copy, log)
        end = max(int(identifier.split(b"-")[0]) for identifier, _ in entries)
        last = [(identifier, fields) for identifier, fields in entries if not identifier.startswith(b"%d-" % end)]
        put_back(copy, log, last)
        copy.hset(
            log.replace(":events", ":metadata"),
            mapping={
                "aggregate": "{}", "revision": end - 1, "schemaVersion": 2, "layoutVersion": 2, "updatedAt": "x", "identity": "x",
                "commitId": last[-1][1][b"commit"], "head": last[-1][0], "chain": last[-1][1][b"chain"],
            },
        )  # fmt: skip
        assert run("audit", "verify", written, "--redis-url", url).exit_code == 0, "the chain alone cannot tell"
        done = run("audit", "verify", *asked, "--redis-url", url)
        assert done.exit_code == 1
        assert f"{written}/gone: revision {end}: the tail was cut" in done.stdout
        copy.flushall()
        done = run("audit", "verify", *asked, "--redis-url", url)
        assert done.exit_code == 1
        assert f"{written}/billing: revision 1: the tail was cut: the log is gone" in done.stdout


def test_what_grows_after_a_checkpoint_is_no_finding(
    ask: Run, run: Run, served: Served, written: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    """Several checkpoints, of several times, together."""
    private, public = keys
    files = []
    for number in range(2):
        files += ["--checkpoint", str(tmp_path / f"{number}.json")]
        assert run("audit", "checkpoint", "--key", private, "--out", files[-1], "--redis-url", served.redis.url).exit_code == 0
        assert ask("groups", "create", written, f"later-{number}").exit_code == 0
    done = run("audit", "verify", *files, "--public-key", public, "--redis-url", served.redis.url, "-o", "json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["checkpoints"]) == 2


def test_a_checkpoint_proves_nothing_without_its_signature(
    run: Run, served: Served, written: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    private, public = keys
    url = ("--redis-url", served.redis.url)
    good = run("audit", "checkpoint", "--key", private, *url).stdout
    kept = tmp_path / "checkpoint.json"
    for wrong in (good.replace('"revision": ', '"revision": 1'), good.replace('"index"', '"inde"'), "nonsense", good[:-20]):
        kept.write_text(wrong, encoding="utf-8")
        done = run("audit", "verify", "--checkpoint", str(kept), "--public-key", public, *url)
        assert (done.exit_code, done.stdout) == (1, ""), done.output
    kept.write_text(good, encoding="utf-8")
    assert run("audit", "verify", written, "--checkpoint", str(kept), *url).exit_code == 2, "a key must be brought"
    other = tmp_path / "other.key"
    assert run("audit", "key", "--out", str(other)).exit_code == 0
    done = run("audit", "verify", "--checkpoint", str(kept), "--public-key", f"{other}.pub", *url)
    assert (done.exit_code, "signed by another" in done.stderr) == (1, True)
    assert run("audit", "verify", "--checkpoint", str(kept), "--public-key", private, *url).exit_code == 2


def test_a_checkpoint_of_a_broken_log_is_not_signed(
    run: Run, served: Served, written: str, keys: tuple[str, str], tmp_path: Path
) -> None:
    with copy_of(served.redis.url) as (url, copy):
        log = f"redis-stream:coord:{{{written}:billing}}:events"
        put_back(copy, log, entries_of(copy, log)[1:])
        done = run("audit", "checkpoint", "--key", keys[0], "--out", str(tmp_path / "c.json"), "--redis-url", url)
        assert done.exit_code == 1
        assert f"{written}/billing: revision 1: " in done.stderr
        assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize("pem", ["", "-----BEGIN PRIVATE KEY-----\nMARKER\n-----END PRIVATE KEY-----\n", "rsa"])
def test_k8_a_key_that_is_none_is_refused_and_not_quoted(run: Run, served: Served, tmp_path: Path, pem: str) -> None:
    file = tmp_path / "some.key"
    if pem == "rsa":
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
    file.write_text(pem, encoding="utf-8")
    done = run("audit", "checkpoint", "--key", str(file), "--redis-url", served.redis.url)
    assert done.exit_code == 2
    assert "some.key" in done.stderr
    assert "MARKER" not in done.output


# -- other stores, and none


def test_a_sql_store_is_read_as_well(run: Run, tmp_path: Path, keys: tuple[str, str]) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text(
        f"coordinator: {{store: {{type: jdbc, url: 'sqlite:///{tmp_path}/coord.db', jdbc: {{timeout-ms: 10000}}}}}}",
        encoding="utf-8",
    )
    services = build(load(file, overrides={"server.workers": 1}, environ={}, secrets_directory=tmp_path / "none"))
    face = Face(services=services, app=create_app(services), store=services.store)  # type: ignore[arg-type]  # a store of the test's kind
    headers = urllib3.make_headers(basic_auth="admin:password")
    for path in ("/streams/orders", "/streams/orders/groups/g", "/streams/orders", "/streams/none/scale"):
        face.ask("POST", path, WHO, user=None, headers=headers)
    services.stop()
    found = exported(run("audit", "export", "--config", str(file)).stdout)
    assert [(each["action"], each["status"]) for each in found] == [
        ("CREATE_STREAM", 201), ("CREATE_STREAM", 409), ("CREATE_GROUP", 201), ("SCALE_STREAM", 400),
    ]  # fmt: skip
    kept = str(tmp_path / "kept.json")
    assert run("audit", "checkpoint", "--key", keys[0], "--out", kept, "--config", str(file)).exit_code == 0
    asked = ("audit", "verify", "--checkpoint", kept, "--public-key", keys[1], "--config", str(file))
    assert run(*asked).exit_code == 0


def test_a_store_that_is_away_ends_in_3(run: Run) -> None:
    for command in ("export", "verify"):
        assert run("audit", command, "--redis-url", f"redis://127.0.0.1:{free_port()}").exit_code == 3


def test_what_an_extra_is_needed_for_says_so(run: Run, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("coord.cli.audit", "coord.cli.auditverify"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    (tmp_path / "x").write_text("x", encoding="utf-8")
    x = str(tmp_path / "x")
    for arguments in (
        ("export", "--format", "parquet"),
        ("checkpoint", "--key", x),
        ("verify", "--checkpoint", x, "--public-key", x),
    ):
        done = run("audit", *arguments, "--redis-url", served.redis.url)
        assert (done.exit_code, "pip install" in done.stderr) == (2, True)
