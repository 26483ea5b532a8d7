"""README is true: its table is the code's, and its tour runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from coord.runtime.embedded import free_port
from ops.docs import README, rendered
from tests.chaos.coordinators import CoordinatorProcess, login
from tests.servers import private_redis

TEXT = README.read_text()


def test_the_configuration_table_is_the_codes() -> None:
    """`make docs` would change nothing."""
    assert rendered(TEXT) == TEXT


def test_every_documented_file_exists() -> None:
    """Links to files of the repository lead somewhere."""
    links = re.findall(r"\]\((?!http)([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not (README.parent / link).is_file()] == []


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """A coordinator like the one that the tour starts."""
    with private_redis() as redis:
        serving = CoordinatorProcess("tour", free_port(), redis.url, tmp_path_factory.mktemp("tour"), workers=1)
        try:
            serving.start()
            yield serving
        finally:
            serving.stop()


@pytest.mark.e2e
def test_the_tour_runs_as_written(coordinator: CoordinatorProcess, tmp_path: Path) -> None:
    """Every command of the curl tour after the start, pasted into one shell: log in, create, join, look, scale."""
    tour = TEXT.split("## Five minutes with curl", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", tour, flags=re.DOTALL)
    assert "coord serve" in blocks[0]
    script = "set -eu\n" + "\necho\n".join(blocks[1:])
    assert "http://127.0.0.1:8080/coord/v1" in script
    script = script.replace("http://127.0.0.1:8080/coord/v1", coordinator.url)
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    for expected in (
        '"streamPrefix":"orders","consumerGroup":"billing"',
        '"streamKeyPattern":"orders:{shardIndex}"',
        '"status":"OK","memberId":"m1"',
        '"targetAssignment":{"m1":[',
        '"targetShardCount":6',
        '"toShardCount":6',
    ):
        assert expected in ran.stdout, ran.stdout


@pytest.mark.e2e
def test_the_python_example_runs_as_written(coordinator: CoordinatorProcess) -> None:
    """The consumer of the example handles the record that its producer publishes."""
    example = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)[0]
    assert "redis://127.0.0.1:6379/0" in example
    example = example.replace("http://127.0.0.1:8080/coord/v1", coordinator.url)
    example = example.replace("redis://127.0.0.1:6379/0", coordinator.redis_url).replace('"orders"', '"example"')
    made = urllib3.request(
        "POST",
        f"{coordinator.url}/streams/example/groups/billing",
        json={"initialShardCount": 2, "requestedBy": "me", "reason": "example"},
        headers={"Authorization": login(coordinator.url)},
        retries=False,
    )
    assert made.status == 201
    ran = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False, cwd=README.parent
    )
    assert ran.returncode == 0, ran.stderr
    assert "{b'total': b'9.90'}" in ran.stdout, (ran.stdout, ran.stderr)
