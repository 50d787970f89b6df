"""Where a supervisor says that it runs."""

from __future__ import annotations

from pathlib import Path


def note_of(data_dir: Path) -> Path:
    """JSON: its pid, how often it has handed over, and how many workers could not be replaced the last time."""
    return data_dir / "supervisor.json"
