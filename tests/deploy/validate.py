"""Holds documents against the schemas of a version of Kubernetes: {"version", "documents"} in, a list of faults out."""

from __future__ import annotations

import json
import sys

import kubernetes_validate

asked = json.load(sys.stdin)
faults = []
for document in asked["documents"]:
    try:
        kubernetes_validate.validate(document, asked["version"], strict=True)
    except kubernetes_validate.ValidationError as error:
        faults.append(f"{document['kind']}: {error.json_path}: {error.message}")
    except kubernetes_validate.SchemaNotFoundError as error:
        faults.append(error.message)
json.dump(faults, sys.stdout)
