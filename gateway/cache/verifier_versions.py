"""Versions of the verifier's weights that `nearhit tune` made, in the data directory.

    verifier/in_force.json       the pointer: the version in force, and those before it
    verifier/VERSION/            a complete folder of weights, as `gateway/cache/weights`, with manifest.json

The pointer is replaced atomically, and a version's folder gets its name by a rename. So a reader finds complete files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.files import replace_file, shared_dir

FOLDER, POINTER, MANIFEST = "verifier", "in_force.json", "manifest.json"
KEPT = 5  # versions on disk, the one in force included
FORMAT = 2
NAME = re.compile(r"(\d{4,9})-[0-9a-f]{8}")
WEIGHT_FILES = ("verifier.json", "verifier.npz", "cross_encoder.json", "cross_encoder.onnx")


@dataclass(frozen=True, slots=True)
class Version:
    """A version on disk."""

    name: str
    in_force: bool
    manifest: Mapping[str, Any]  # empty if it cannot be read


class VerifierVersions:
    """`VerifierVersions` reads and writes the versions of one data directory. All workers of a gateway share them."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = shared_dir(data_dir) / FOLDER

    def in_force(self) -> str | None:
        """Return the name of the version in force, or None for the shipped weights. Raise `WeightsCorrupt`."""
        chain = self._chain()
        return chain[-1] if chain else None

    def directory(self, version: str, embedder: str) -> Path:
        """Return the folder of a version, with its files checked. `embedder` is that of `put_in_force`.

        Raise `WeightsCorrupt` if a file is missing or differs, or if the version was made for another embedder.
        """
        folder, manifest = self.folder / version, self._manifest(version)
        if manifest["embedder"] != embedder:
            raise WeightsCorrupt(
                f"the verifier {version} was made for the embedder {manifest['embedder']}, this is {embedder}"
            )
        for name in WEIGHT_FILES:
            try:
                digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            except OSError as error:
                raise WeightsCorrupt(f"{folder / name} cannot be read ({error.strerror})") from None
            if digest != (expected := str(manifest["sha256"].get(name))):
                raise WeightsCorrupt(f"{folder / name} has sha256 {digest[:12]}..., expected {expected[:12]}...")
        return folder

    def put_in_force(self, files: Mapping[str, bytes], embedder: str, report: Mapping[str, Any]) -> str:
        """Write the files as a new version, put it in force, and return its name.

        `files` has the contents of `WEIGHT_FILES`. `embedder` is the name of the embedding model that the numbers fit.
        Versions beyond `KEPT` are removed, the oldest first. Raise OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        sha256 = {name: hashlib.sha256(files[name]).hexdigest() for name in WEIGHT_FILES}
        whole = hashlib.sha256(json.dumps(sha256, sort_keys=True).encode()).hexdigest()
        version = f"{self._next_number():04d}-{whole[:8]}"
        manifest = {"format": FORMAT, "version": version, "embedder": embedder, "sha256": sha256, **report}
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            for name in WEIGHT_FILES:
                _write(scratch / name, files[name])
            _write(scratch / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")
            scratch.rename(self.folder / version)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        try:
            chain = self._chain()
        except WeightsCorrupt:
            chain = []  # the pointer is damaged: the new one begins again
        self._point([*chain, version][-KEPT:])
        self._prune()
        return version

    def rollback(self) -> str | None:
        """Put the previous version in force and return its name, or None for the shipped weights.

        Raise `WeightsCorrupt` if no version is in force.
        """
        chain = self._chain()
        if not chain:
            raise WeightsCorrupt("the shipped verifier is in force, expected a version to roll back")
        self._point(chain[:-1])
        return chain[-2] if len(chain) > 1 else None

    def all(self) -> list[Version]:
        """Return the versions on disk, the oldest first."""
        current, versions = self.in_force(), list[Version]()
        for name in self._names():
            try:
                versions.append(Version(name, name == current, self._manifest(name)))
            except WeightsCorrupt:
                versions.append(Version(name, name == current, {}))
        return versions

    def _names(self) -> list[str]:
        """Return the names of the versions on disk, the oldest first."""
        if not self.folder.is_dir():
            return []
        names = [each.name for each in self.folder.iterdir() if NAME.fullmatch(each.name)]
        return sorted(names, key=lambda name: int(name.partition("-")[0]))

    def _next_number(self) -> int:
        return max((int(name.partition("-")[0]) for name in self._names()), default=0) + 1

    def _manifest(self, version: str) -> dict[str, Any]:
        path = self.folder / version / MANIFEST
        try:
            manifest: dict[str, Any] = json.loads(path.read_bytes())
            if manifest["format"] != FORMAT:
                raise ValueError(f"format {manifest['format']}, expected {FORMAT}")
            manifest["sha256"].get, str(manifest["embedder"])
        except OSError as error:
            raise WeightsCorrupt(f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsCorrupt(f"{path} is not valid: {error!r}") from None
        return manifest

    def _chain(self) -> list[str]:
        """Return the versions that were put in force, the last one in force."""
        path = self.folder / POINTER
        try:
            chain = json.loads(path.read_bytes())["chain"]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise WeightsCorrupt(f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise WeightsCorrupt(f"{path} is not valid: {error!r}") from None
        if not isinstance(chain, list) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in chain):
            raise WeightsCorrupt(f"{path} is not valid: expected a list of versions")
        return chain

    def _point(self, chain: list[str]) -> None:
        path = self.folder / POINTER
        replace_file(path, json.dumps({"chain": chain}).encode() + b"\n", path.with_name(f".{POINTER}.new"), 0o600)

    def _prune(self) -> None:
        """Remove versions beyond `KEPT`, and what an interrupted run has left."""
        for name in self._names()[:-KEPT]:
            shutil.rmtree(self.folder / name, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
