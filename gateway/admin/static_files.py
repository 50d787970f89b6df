"""The dashboard's own files. They hold no figures, so that they may be fetched before anybody has shown a token."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Mapping
from importlib import metadata, resources
from importlib.resources.abc import Traversable

from aiohttp import web

LOG = logging.getLogger("nearhit")
PATH = "/dashboard"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The charts' library comes with a package of its own, which is looked for and never imported: its Python part needs
# what a gateway does not (docs/decisions/0023). Without it the page shows tables.
CHARTS = "uplot-python"
CHART_FILES = {"uplot.js": "uplot/static/uPlot.iife.js", "uplot.css": "uplot/static/uPlot.min.css"}
# Nothing is loaded from anywhere else, nobody may frame it, and no text can become markup or a script.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and sent again only where it has changed
}


class StaticFiles:
    def __init__(self) -> None:
        folder = resources.files("gateway.admin") / "dashboard"
        self._files = {**chart_files(), **_files(folder)}
        self._gzipped = {name: gzip.compress(content, mtime=0) for name, content in self._files.items()}
        self._tags = {name: f'"{hashlib.sha256(content).hexdigest()[:16]}"' for name, content in self._files.items()}

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PATH, self._get), web.get(PATH + "/{name:.+}", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info.get("name", "index.html")
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        headers = {**HEADERS, "ETag": self._tags[name]}
        if request.headers.get("If-None-Match") == self._tags[name]:
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            content, headers["Content-Encoding"] = self._gzipped[name], "gzip"
        headers["Vary"] = "Accept-Encoding"
        kind = TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)


def is_page(path: str) -> bool:
    """Its files, and the way to them."""
    return path in ("/", PATH) or path.startswith(PATH + "/")


def chart_files() -> Mapping[str, bytes]:
    """The charts' library; empty files where it is not installed."""
    try:
        installed = metadata.distribution(CHARTS)
        return {name: installed.locate_file(path).read_bytes() for name, path in CHART_FILES.items()}  # type: ignore[attr-defined]
    except (metadata.PackageNotFoundError, OSError):
        LOG.info("the dashboard has no charts, and shows tables instead", extra={"fields": {"missing": CHARTS}})
        return dict.fromkeys(CHART_FILES, b"")


def _files(folder: Traversable, prefix: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in folder.iterdir():
        if each.is_dir():
            found |= _files(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in TYPES:
            found[prefix + each.name] = each.read_bytes()
    return found
