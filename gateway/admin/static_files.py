"""The files of the dashboard. They contain no data, so a browser may load them without credentials."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.admin.middleware import PAGE
from gateway.admin.operations import operation

if TYPE_CHECKING:
    from gateway.admin.on_demand import AdminCore

LOG = logging.getLogger("nearhit")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The chart library comes from a package that is located but never imported, because its Python part has further
# dependencies (docs/decisions/0023). `make dist` makes the second one, which has its files alone. Without either, the
# page shows tables.
CHARTS = ("uplot-python", "nearhit-charts")
CHART_FILES = {"uplot.js": "uplot/static/uPlot.iife.js", "uplot.css": "uplot/static/uPlot.min.css"}
# The page loads nothing from other hosts, cannot be framed, and never treats text as markup or script.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated each time
}


class StaticFiles:
    """`StaticFiles` serves the files of the dashboard from memory."""

    def __init__(self, _: AdminCore | None = None) -> None:
        self._files = {**chart_files(), **_files(resources.files("gateway.admin") / "dashboard")}
        self._gzipped: dict[str, bytes] = {}  # those that a browser has asked for: all of them take 13 ms of a start
        self._tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in self._files.items()}

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PAGE, self._get), web.get(PAGE + "/{name:.+}", self._get)]

    @operation(str, returns_type="text/html")
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Return the page or a file of the dashboard. The type depends on the file."""
        name = request.match_info.get("name", "index.html")
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        headers = {**HEADERS, "ETag": self._tags[name]}
        if request.headers.get("If-None-Match") == self._tags[name]:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            content, headers["Content-Encoding"] = self._compressed(name), "gzip"
        headers["Vary"] = "Accept-Encoding"
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    def _compressed(self, name: str) -> bytes:
        if (data := self._gzipped.get(name)) is None:
            data = self._gzipped[name] = gzip.compress(self._files[name], mtime=0)
        return data


def chart_files() -> Mapping[str, bytes]:
    """Return the files of the chart library. If it is not installed, they are empty."""
    for package in CHARTS:
        try:
            installed = metadata.distribution(package)
            return {name: Path(str(installed.locate_file(path))).read_bytes() for name, path in CHART_FILES.items()}
        except (metadata.PackageNotFoundError, OSError):
            continue
    LOG.info("the dashboard has no charts and shows tables instead", extra={"fields": {"missing": CHARTS}})
    return dict.fromkeys(CHART_FILES, b"")


def _files(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for each in folder.iterdir():
        if each.is_dir():
            files |= _files(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in TYPES:
            files[prefix + each.name] = each.read_bytes()
    return files
