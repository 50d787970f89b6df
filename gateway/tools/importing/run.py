"""Import a configuration of another gateway: read, map, write, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.tools.importing.document import read_document
from gateway.tools.importing.litellm.advice import advice
from gateway.tools.importing.litellm.mapping import map_litellm
from gateway.tools.importing.report import ImportReport
from gateway.tools.importing.writing import write


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The choices of the operator. `through`: the URL of the old proxy, for models of providers without counterpart."""

    file: Path
    out: Path
    overwrite: bool = False
    through: str | None = None


def import_litellm(options: ImportOptions, environ: Mapping[str, str]) -> ImportReport:
    """Import LiteLLM's configuration. Raise `ConfigInvalid` if it is not readable, and `ImportFailed`."""
    document = read_document(options.file)
    draft = map_litellm(document, options.through)
    title = f"Imported from {options.file.name} of LiteLLM by `nearhit import litellm`."
    files = write(draft, title, options.out, environ, overwrite=options.overwrite)
    return ImportReport(str(options.file), document.account(advice), draft.differences, draft.variables, files)
