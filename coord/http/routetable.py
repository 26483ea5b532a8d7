"""From the segments of a path to its route: a few look-ups, whatever the number of routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from coord.http.routes import FIELD, ROUTES, Route, snake


@dataclass(frozen=True, slots=True)
class Found:
    """A route with what is asked of it for every request. `rank`: its place in the table, the first of several counts."""

    rank: int
    route: Route
    template: str
    falcon_template: str
    parameters: tuple[tuple[str, int], ...]
    """Each path parameter as responders name it, and the segment that is its value."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Routes of one length whose literals stand in the same places."""

    literals: Callable[[Sequence[str]], object]
    routes: dict[object, Found]


class RouteTable:
    """Finds the route of a path. Segments are decoded already; matching is by position, literals before parameters."""

    def __init__(self, base_path: str, routes: Sequence[Route] = ROUTES) -> None:
        self.base_path = base_path
        self.base = tuple(base_path.strip("/").split("/"))
        self._by_length: dict[int, dict[tuple[int, ...], _Shape]] = {}
        for rank, route in enumerate(routes):
            self._add(rank, route)

    def _add(self, rank: int, route: Route) -> None:
        parts = route.template(self.base_path).strip("/").split("/")
        places = tuple(place for place, part in enumerate(parts) if not FIELD.fullmatch(part))
        fields = [place for place in range(len(parts)) if place not in places]
        shapes = self._by_length.setdefault(len(parts), {})
        shape = shapes.setdefault(places, _Shape(itemgetter(*places), {}))
        found = Found(
            rank=rank,
            route=route,
            template=route.template(self.base_path),
            falcon_template=route.falcon_template(self.base_path),
            parameters=tuple(zip(map(snake, route.parameters), fields, strict=True)),
        )
        shape.routes.setdefault(shape.literals(parts), found)

    def is_under_base(self, segments: Sequence[str]) -> bool:
        """Say whether a path lies below `api.base-path`, known or not."""
        return tuple(segments[: len(self.base)]) == self.base

    def match(self, segments: Sequence[str]) -> tuple[Found, dict[str, str]] | None:
        """Give the route and its parameters (by responder name), or None."""
        best: Found | None = None
        for shape in self._by_length.get(len(segments), {}).values():
            found = shape.routes.get(shape.literals(segments))
            if found is not None and (best is None or found.rank < best.rank):
                best = found
        if best is None:
            return None
        return best, {name: segments[place] for name, place in best.parameters}
