"""gunicorn's own logs, through our pipeline: give the class as gunicorn's `logger_class`.

Apart from `logging.py`, so that the commands that serve nothing do not import gunicorn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gunicorn import glogging

if TYPE_CHECKING:
    import logging

    from gunicorn.config import Config


class GunicornLogger(glogging.Logger):  # type: ignore[misc] # gunicorn has no types
    """Leaves writing to the root logger; `accesslog` decides, as always, whether requests are logged at all."""

    def setup(self, cfg: Config) -> None:
        """Take gunicorn's level, but none of its handlers."""
        super().setup(cfg)
        self.error_log.propagate = True
        self.access_log.propagate = True

    def _set_handler(self, log: logging.Logger, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: the root logger's handler is the only one."""
