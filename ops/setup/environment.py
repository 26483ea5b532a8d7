"""Make `.venv` from a lock file: `python3.11 ops/setup/environment.py runtime|dev`.

Needs Python 3.11 and its standard library, nothing else. A stamp in the environment names what was installed, so a second
run returns at once and a changed lock, project file, Python or folder installs again. Where this Python came without
ensurepip (Debian without python3-venv), pip's wheel is fetched from the configured package index and checked by its hash.

Exit codes: 0 ready, 1 an install step failed, 2 wrong usage or wrong Python.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import importlib.util
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = {"runtime": "requirements.lock", "dev": "requirements-dev.lock"}
INCLUDES = {"runtime": ("runtime",), "dev": ("runtime", "dev")}
"""What an install provides: the development lock holds all of the runtime lock (tests/unit/test_locks.py)."""

PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
INDEX_DEFAULT = "https://pypi.org/simple"
FETCH_TIMEOUT_S = 60
WHEEL_BYTES_MAX = 16 * 1024 * 1024
ANCHOR = re.compile(r"""<a\s[^>]*?href=["']([^"']+)["']""", re.IGNORECASE)


class SetupError(Exception):
    """A step failed; the message says which, and what to do."""


def say(text: str) -> None:
    """Print one line of progress at once."""
    print(f"setup: {text}", flush=True)


def fingerprint(kind: str) -> str:
    """Return what an install of `kind` depends on, as one hash: lock, project file, Python, folder."""
    parts = [(ROOT / LOCKS[kind]).read_bytes(), (ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_stamp(stamp: Path) -> dict[str, str]:
    """Return kind -> fingerprint of what is installed; empty when nothing is, or the stamp is unreadable."""
    try:
        found = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def run(what: str, *command: str | Path) -> None:
    """Run one step with its own output shown; raises SetupError."""
    if subprocess.run([str(part) for part in command], check=False, cwd=ROOT).returncode:
        raise SetupError(f"{what} failed; the lines above say why")


def runs(python: Path) -> bool:
    """Tell whether an environment's interpreter starts, is this very Python, and has pip."""
    probe = "import sys, pip; print(sys.version, end='')"
    try:
        answer = subprocess.run([str(python), "-c", probe], check=False, capture_output=True, text=True)
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout == sys.version


def pip_settings() -> Iterator[Path]:
    """Yield the places of pip's own configuration files, weakest first."""
    home = Path.home()
    for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(os.pathsep):
        yield Path(folder, "pip", "pip.conf")
    yield from (Path("/etc/pip.conf"), home / ".pip" / "pip.conf")
    yield Path(os.environ.get("XDG_CONFIG_HOME", home / ".config"), "pip", "pip.conf")
    if named := os.environ.get("PIP_CONFIG_FILE"):
        yield Path(named)


def package_index() -> str:
    """Return the index that pip would ask: PIP_INDEX_URL, else pip's configuration, else PyPI."""
    found = INDEX_DEFAULT
    for file in pip_settings():
        settings = configparser.RawConfigParser()
        settings.read(file, encoding="utf-8")
        found = settings.get("global", "index-url", fallback=found)
    return os.environ.get("PIP_INDEX_URL", found).rstrip("/")


def fetch(url: str) -> bytes:
    """Return what `url` holds; raises SetupError. PIP_CERT names a certificate file, as for pip."""
    trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S, context=trust) as answer:
            body: bytes = answer.read(WHEEL_BYTES_MAX)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise SetupError(f"the package index did not answer ({error}); is PIP_INDEX_URL right?") from None
    return body


def fetch_pip(folder: Path) -> Path:
    """Return pip's wheel, fetched into `folder` and checked; raises SetupError."""
    page = f"{package_index()}/pip/"
    links = [urllib.parse.urljoin(page, link) for link in ANCHOR.findall(fetch(page).decode("utf-8", "replace"))]
    named = [link for link in links if urllib.parse.urlsplit(link).path.endswith(f"/{PIP_WHEEL}")]
    if not named:
        raise SetupError(f"the package index has no {PIP_WHEEL}; install your system's python3-venv package instead")
    body = fetch(urllib.parse.urldefrag(named[0]).url)
    if hashlib.sha256(body).hexdigest() != PIP_SHA256:
        raise SetupError(f"{PIP_WHEEL} from the package index is not the wheel that this project knows (SHA-256 differs)")
    wheel = folder / PIP_WHEEL
    wheel.write_bytes(body)
    return wheel


def create(folder: Path, python: Path, *, without_ensurepip: bool) -> None:
    """Make a fresh environment with pip in it; raises SetupError."""
    say(f"making {folder.name} with Python {sys.version.split()[0]}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    if not without_ensurepip and importlib.util.find_spec("ensurepip") is not None:
        run("ensurepip", python, "-m", "ensurepip", "--default-pip")
        return
    say(f"this Python has no ensurepip: fetching {PIP_WHEEL}")
    with tempfile.TemporaryDirectory() as scratch:
        wheel = fetch_pip(Path(scratch))
        run("installing pip", python, wheel / "pip", "install", "--no-deps", "--no-index", wheel)


def install(kind: str, folder: Path, *, without_ensurepip: bool) -> None:
    """Bring `folder` to what the lock of `kind` says; returns at once if it is there already. Raises SetupError."""
    stamp, wanted = folder / ".installed.json", fingerprint(kind)
    python = folder / "bin" / "python"
    before = read_stamp(stamp)
    if before.get(kind) == wanted and python.exists():
        return
    stamp.unlink(missing_ok=True)
    if not runs(python):
        create(folder, python, without_ensurepip=without_ensurepip)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
    say(f"installing {LOCKS[kind]}, every file checked by its hash")
    run("installing the lock", *pip, "--require-hashes", "--requirement", ROOT / LOCKS[kind])
    say("installing the project itself")
    run("installing the project", *pip, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(json.dumps({included: fingerprint(included) for included in INCLUDES[kind]}), encoding="utf-8")
    say(f"{folder.name} is ready")


def main() -> int:
    """Read the command line and install."""
    parser = argparse.ArgumentParser(description="Make .venv from a lock file.")
    parser.add_argument("kind", choices=sorted(LOCKS))
    parser.add_argument("--without-ensurepip", action="store_true", help="fetch pip's wheel even where ensurepip is there")
    asked = parser.parse_args()
    if sys.version_info[:2] != (3, 11):
        print(f"setup: needs Python 3.11, this is {sys.version.split()[0]}; name another: make PYTHON=...", file=sys.stderr)
        return 2
    try:
        install(asked.kind, ROOT / ".venv", without_ensurepip=asked.without_ensurepip)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
