"""The validator is imported when an answer is checked, not before."""

from __future__ import annotations

import subprocess
import sys


def test_a_gateway_that_checks_no_answer_does_not_import_the_validator() -> None:
    program = (
        "import sys, gateway.app, gateway.cli.serve\n"
        "print(*sorted({'jsonschema', 'gateway.features.answer_schemas.validator'} & sys.modules.keys()))"
    )
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert imported.stdout.split() == []
