"""Import a configuration of another gateway: read, map, write, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.features.importing.document import LITELLM_VARIABLE, SHELL_VARIABLE, read_document
from gateway.features.importing.draft import Draft
from gateway.features.importing.litellm.advice import advice as litellm_advice
from gateway.features.importing.litellm.mapping import map_litellm
from gateway.features.importing.report import Finding, ImportReport
from gateway.features.importing.semantic_router.advice import advice as semantic_router_advice
from gateway.features.importing.semantic_router.mapping import map_semantic_router
from gateway.features.importing.writing import write


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The operator's choices. `through` is the URL of the old proxy, for models of providers without counterpart."""

    file: Path
    out: Path
    overwrite: bool = False
    through: str | None = None


def import_litellm(options: ImportOptions, environ: Mapping[str, str]) -> ImportReport:
    """Import LiteLLM's configuration. Raise `ConfigInvalid` if it is not readable, and `ImportFailed`."""
    document = read_document(options.file, LITELLM_VARIABLE)
    draft = map_litellm(document, options.through)
    title = f"Imported from {options.file.name} of LiteLLM by `nearhit import litellm`."
    files = write(draft, title, options.out, environ, overwrite=options.overwrite)
    return _report(options, document.account(litellm_advice), draft, files)


def import_semantic_router(options: ImportOptions, environ: Mapping[str, str]) -> ImportReport:
    """Import vLLM Semantic Router's configuration. Raise `ConfigInvalid` if it is not readable, and `ImportFailed`."""
    document = read_document(options.file, SHELL_VARIABLE)
    draft = map_semantic_router(document)
    title = f"Imported from {options.file.name} of vLLM Semantic Router by `nearhit import vllm-semantic-router`."
    files = write(draft, title, options.out, environ, overwrite=options.overwrite)
    return _report(options, document.account(semantic_router_advice), draft, files)


def _report(options: ImportOptions, findings: Sequence[Finding], draft: Draft, files: Sequence[str]) -> ImportReport:
    return ImportReport(str(options.file), findings, draft.differences, draft.variables, files, draft.summary)
