"""Hooks of the documentation site (mkdocs.yml).

The pages of the repository's root (README, ARCHITECTURE, CONTRIBUTING, CHANGELOG) are part of the site. They are read
from their files at each build, so that they exist once.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# File of the root -> its name on the site.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root to the site."""
    for name, site_name in PAGES.items():
        files.append(File.generated(config, site_name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point each link between files of the repository to the page of the site that shows the file.

    Raises `PluginError` for a link to a file that is not part of the site.
    """
    roots = {site_name: name for name, site_name in PAGES.items()}
    source = roots.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def site_link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if target not in PAGES and not target.startswith("docs/"):
            raise PluginError(f"{source}: the link to {match[2]} leads out of the site; write the path as code")
        site_name = PAGES.get(target, target.removeprefix("docs/"))
        return match[1] + posixpath.relpath(site_name, posixpath.dirname(page.file.src_uri) or ".") + match[3]

    return _LINK.sub(site_link, markdown)
