"""Text that must not be seen: passwords, token secrets, URLs with credentials."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

MASK = "******"
"""What stands for a secret in every printed form."""


class Secret:
    """A text that shows as `******` in `str`, `repr`, formatting and tracebacks; `reveal()` gives it.

    An empty secret means "not set" and is falsy. Two secrets are compared in constant time.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself. Call it where the text is used, never where it is kept or logged."""
        return self._text

    def is_blank(self) -> bool:
        """Say whether there is nothing but white space in it."""
        return not self._text.strip()

    def size_bytes(self) -> int:
        """Return the length in UTF-8 bytes, for "long enough" checks."""
        return len(self._text.encode("utf-8", "surrogatepass"))

    def masked(self) -> str:
        """Return what may be shown of it: nothing but whether it is set."""
        return MASK if self._text else ""

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass"))

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return self.masked()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.masked()!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        """Refuse to be pickled: a pickle is plain text."""
        message = "a secret is not pickled"
        raise TypeError(message)


class SecretUrl(Secret):
    """A URL that may hold credentials; shows scheme, host, port and path, never user, password or query."""

    __slots__ = ()

    def masked(self) -> str:
        """Return the URL with everything hidden that can hold a credential; all of it if it is no URL."""
        if not self._text:
            return ""
        java, plain = ("jdbc:", self._text[5:]) if self._text[:5].lower() == "jdbc:" else ("", self._text)
        try:
            parts = urlsplit(plain)
            host, port = parts.hostname, parts.port
        except ValueError:
            return MASK
        if not parts.scheme or not (host or parts.path) or "@" in parts.path:
            return MASK
        place = f"[{host}]" if host and ":" in host else (host or "")
        user = f"{MASK}@" if "@" in parts.netloc else ""
        query = f"?{MASK}" if parts.query else ""
        if not plain[len(parts.scheme) :].startswith("://"):
            return f"{java}{parts.scheme}:{parts.path}{query}"
        return f"{java}{parts.scheme}://{user}{place}{f':{port}' if port is not None else ''}{parts.path}{query}"
