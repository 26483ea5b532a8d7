"""The configuration: YAML, placeholders, environment and overrides in; one frozen, checked `Configuration` out.

`schema` names every key; `rules` says what a value may be; `document`, `environment` and `layers` bring the values
together; `checks` judges combinations; `loading` is the way through all of it; `strangers` lists keys that are not ours.
"""

from __future__ import annotations

from coord.config.loading import load, log_warnings
from coord.config.problems import ConfigurationError, Problem
from coord.config.rules import Retention
from coord.config.schema import Configuration, User
from coord.config.secret import Secret, SecretUrl
from coord.config.shown import Shown, effective, markdown_table

__all__ = [
    "Configuration",
    "ConfigurationError",
    "Problem",
    "Retention",
    "Secret",
    "SecretUrl",
    "Shown",
    "User",
    "effective",
    "load",
    "log_warnings",
    "markdown_table",
]
