"""Loads in a world of their own: an empty directory, no environment, no mounted secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from coord.config import Configuration, ConfigurationError, load


@dataclass
class Place:
    """A directory with or without `coordinator.yaml`, and a directory of mounted secrets."""

    directory: Path

    def write(self, yaml: str) -> Place:
        """Put the text into `coordinator.yaml`."""
        (self.directory / "coordinator.yaml").write_text(yaml, encoding="utf-8")
        return self

    def coordinator(self, *lines: str) -> Place:
        """Put lines under the root key."""
        return self.write("coordinator:\n" + "".join(f"  {line}\n" for line in lines))

    def mount(self, name: str, text: str) -> Path:
        """Put a file where secrets are mounted."""
        file = self.secrets / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    @property
    def secrets(self) -> Path:
        """Where secrets are mounted."""
        return self.directory / "secrets"

    def load(
        self,
        file: Path | None = None,
        *,
        overrides: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        **variables: str,
    ) -> Configuration:
        """Load with these variables and no others."""
        return load(
            file,
            overrides=overrides,
            environ=variables | dict(environ or {}),
            directory=self.directory,
            secrets_directory=self.secrets,
        )

    def refused(
        self, *, overrides: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None, **variables: str
    ) -> dict[str, str]:
        """Load, expect a refusal and return its messages by key (several of one key joined)."""
        with pytest.raises(ConfigurationError) as caught:
            self.load(overrides=overrides, environ=variables | dict(environ or {}))
        messages: dict[str, str] = {}
        for problem in caught.value.problems:
            messages[problem.key] = " | ".join(filter(None, [messages.get(problem.key), problem.message]))
        return messages

    def warned(self, *, overrides: Mapping[str, object] | None = None, **variables: str) -> dict[str, str]:
        """Load and return the warnings by key."""
        return {warning.key: warning.message for warning in self.load(overrides=overrides, environ=variables).warnings}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A fresh place."""
    return Place(tmp_path)
