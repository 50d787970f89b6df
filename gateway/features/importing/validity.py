"""Whether an imported backend would load, so that one that would not is left out before the files are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from gateway.config.backends import OpenAIBackendConfig
from gateway.config.errors import render_path
from gateway.config.validation import error_messages

_VARIABLE = re.compile(r"^\$\{\w+\}", re.ASCII)  # at the start of a URL


def fault_of(section: Mapping[str, Any]) -> str | None:
    """Return why a backend would not load, or None if it would. A variable in its URL stands for a host."""
    url = {"url": _VARIABLE.sub("http://placeholder.invalid", section["url"])} if "url" in section else {}
    try:
        OpenAIBackendConfig.model_validate({**section, **url})
    except ValidationError as invalid:
        path, message = next(iter(error_messages(invalid)))
        return f"{render_path(path)}: {message}" if path else message
    return None
