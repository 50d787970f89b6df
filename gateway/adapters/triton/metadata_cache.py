"""What a model on Triton was at the last start, so that a gateway can start while its server is away."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.files import replaced

LOG = logging.getLogger("nearhit")
FOLDER = "served-models"


@dataclass(frozen=True, slots=True)
class Description:
    """A model, as its server tells of it. `inputs`: their names; `rows`: of a request at most, 0: any number;
    `platform`: that, or the backend."""

    version: str
    inputs: tuple[str, ...]
    rows: int
    platform: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """`proof`: what is the same each time the model answers its probes; `dimension`: of its rows."""

    described: Description
    proof: str
    dimension: int


class TritonMemory:
    """Of one model: in `data_dir`, a file for each address, name and whatever else decides which model it is."""

    def __init__(self, data_dir: Path, *decisive: str) -> None:
        name = hashlib.sha256("\n".join(decisive).encode()).hexdigest()[:16]
        self._file = data_dir / FOLDER / f"{name}.json"

    def recall(self) -> Remembered | None:
        """None: nothing that can be read."""
        try:
            found = json.loads(self._file.read_bytes())
            described = found["described"]
            return Remembered(
                Description(
                    str(described["version"]),
                    _names(described["inputs"]),
                    int(described["rows"]),
                    str(described["platform"]),
                ),
                str(found["proof"]),
                int(found["dimension"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            LOG.warning("what a served model was cannot be read", extra={"fields": _fields(self._file, error)})
            return None

    def note(self, what: Remembered) -> None:
        """Without a folder that can be written the next start needs the server."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replaced(self._file, json.dumps(asdict(what)).encode(), self._file.with_suffix(".new"), 0o644)
        except OSError as error:
            LOG.warning("what a served model is cannot be kept", extra={"fields": _fields(self._file, error)})


def _names(given: Sequence[object]) -> tuple[str, ...]:
    return tuple(sorted(map(str, given)))


def _fields(file: Path, error: Exception) -> dict[str, object]:
    return {"file": file.name, "error": type(error).__name__}
