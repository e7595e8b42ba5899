"""The answers of the console: the page, JSON, metrics and probes."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kworker.console.metrics import Metrics
from kworker.console.source import Document, Snapshot, StatusSource
from kworker.supervisor import probes

_FILES = Path(__file__).parent / "page"


def make_app(source: StatusSource) -> Starlette:
    """Returns the ASGI application that answers from `source`."""
    page = PageData(source)

    async def status(_request: Request) -> Response:
        snapshot = await source.latest()
        return _json(snapshot.document, 200) if not snapshot.problem else _gone(snapshot)

    async def page_data(_request: Request) -> Response:
        return _json(page.of(await source.latest()), 200)

    async def metrics(request: Request) -> Response:
        snapshot = await source.latest()
        try:
            encode, media = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # an odd version in it
            encode, media = choose_encoder("")
        return Response(encode(Metrics(snapshot)), headers={"content-type": media})

    def probe(path: str, judge: Callable[[Snapshot], list[str]]) -> Route:
        async def answer(request: Request) -> Response:
            snapshot = await source.latest()
            problems = judge(snapshot)
            told: dict[str, Any] = {"ok": not problems}
            if request.state.trusted:
                told |= {**_identity(snapshot), "reasons": problems}
            return _json(told, 503 if problems else 200)

        return Route(path, answer)

    return Starlette(
        routes=[
            _file("/", "index.html", "text/html"),
            _file("/page.js", "page.js", "text/javascript"),
            _file("/page.css", "page.css", "text/css"),
            _file("/icon.svg", "icon.svg", "image/svg+xml"),
            Route("/status.json", status),
            Route("/page.json", page_data),
            Route("/metrics", metrics),
            probe("/livez", why_not_live),
            probe("/readyz", why_not_ready),
            probe("/startupz", why_not_started),
        ]
    )


def why_not_live(snapshot: Snapshot) -> list[str]:
    """Returns why the service is not alive (its supervisor is silent); [] if it is alive."""
    if snapshot.alive:
        return []
    return [snapshot.problem]


def why_not_ready(snapshot: Snapshot) -> list[str]:
    """Returns why the service is not ready; [] if it is ready."""
    if snapshot.document is None or not snapshot.alive:
        return [snapshot.problem]
    return probes.why_not_ready(snapshot.document)


def why_not_started(snapshot: Snapshot) -> list[str]:
    """Returns why the start of the service is not over.

    Returns [] once every worker has joined, also if the supervisor has become silent since.
    """
    document = snapshot.document
    if document is None or not (snapshot.alive or document["joined"]):
        return [snapshot.problem]
    return probes.why_not_started(document)


def _identity(snapshot: Snapshot) -> dict[str, Any]:
    """Returns the service's name and state; the state is None if the supervisor is silent."""
    document = snapshot.document or {"name": None, "state": None}
    return {"name": document["name"], "state": document["state"] if snapshot.alive else None}


class PageData:
    """The data of the page. Each snapshot of the status is rendered once, for all open pages."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source
        self._document: Document | None = None
        self._rendered = self._render(None)

    def of(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """Returns the data for an open page, such as the status, its age, and the present time."""
        if snapshot.document is not self._document:
            self._document = snapshot.document
            self._rendered = self._render(snapshot.document)
        return {
            **self._rendered,
            "age_s": round(snapshot.age_s, 1),
            "now": time.time(),  # the browser's clock may differ
            "problem": snapshot.problem,
        }

    def _render(self, document: Document | None) -> Mapping[str, orjson.Fragment]:
        source = self._source
        parts = {
            "status": document,
            "since": [source.since(each) for each in document["reasons"]] if document else [],
            "samples": [list(sample) for sample in source.samples],
            "events": [list(event) for event in source.events],
        }
        return {name: orjson.Fragment(orjson.dumps(part)) for name, part in parts.items()}


def _gone(snapshot: Snapshot) -> Response:
    told = {"error": snapshot.problem, "age_s": snapshot.age_s, "last": snapshot.document}
    return _json(told, 503)


def _json(content: Any, code: int) -> Response:
    return Response(orjson.dumps(content), code, media_type="application/json")


def _file(path: str, name: str, media_type: str) -> Route:
    content = (_FILES / name).read_bytes()

    async def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type)

    return Route(path, answer)
