"""What a run does with a test that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HANGS_IN_A_POOL = """
import threading
from concurrent.futures import ThreadPoolExecutor

def test_that_hangs():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(threading.Event().wait).result()

def test_after_it():
    pass
"""


@pytest.mark.e2e
def test_a_hanging_thread_fails_its_test_by_name_and_no_other(tmp_path: Path) -> None:
    """pytest-timeout alone would wait for ever: the pool joins the thread when it is left."""
    (tmp_path / "test_it.py").write_text(HANGS_IN_A_POOL)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    plugins = ("-p", "tests.hanging", "-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", *plugins, "--rootdir", tmp_path, "-c", tmp_path / "pytest.ini", tmp_path],
        cwd=ROOT,
        env={**os.environ, "HANGING_GRACE_S": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "crashed while running 'test_it.py::test_that_hangs'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "in test_that_hangs" in done.stderr, "the stacks tell where"
