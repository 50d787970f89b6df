"""The key `identity` of a backend: how the gateway proves who it is, where it has no key.

The `type` names the class of the section. Other packages declare theirs as entry points of the group
`nearhit.identities`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, TypeAdapter
from pydantic_core import CoreSchema

from gateway.config.errors import format_value
from gateway.config.fields import SourcedSection
from gateway.config.schema_types import Schema
from gateway.config.validation import Section, one_of
from gateway.extensions import Extensions

IDENTITIES = Extensions(
    "nearhit.identities",
    {
        "oauth": "gateway.features.oauth_client.settings:OAuthIdentity",
        "azure": "gateway.features.workload_identity.settings:AzureIdentity",
        "google": "gateway.features.workload_identity.settings:GoogleIdentity",
        "aws": "gateway.features.workload_identity.settings:AwsIdentity",
    },
)
"""The section of each type: a subclass of `IdentitySection`."""


class IdentitySection(SourcedSection):
    """The settings of each identity. A subclass reads those of one type."""

    builder: ClassVar[str]
    """The `IdentityBuilder` of `gateway.upstream.building`, as `module:attribute`."""

    type: str
    """How the gateway proves who it is."""


class _Type(Section):
    """The key that decides which class reads the other keys."""

    type: Annotated[str, one_of(*IDENTITIES.own)] = Field(examples=["oauth"])
    """The type."""


def _parse_identity(value: Any) -> IdentitySection:
    if isinstance(value, IdentitySection):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping such as {{type: oauth, ...}}, got {format_value(value)}")
    named = value.get("type")
    section: type[IdentitySection] | None = IDENTITIES.load(named) if isinstance(named, str) else None
    if section is None:  # the type is missing or unknown: one fault, and not one for each class
        _Type.model_validate({"type": named} if "type" in value else {})
    assert section is not None
    return section.model_validate(value)


@dataclass(frozen=True, slots=True)
class _AnySection:
    """Field metadata: the JSON Schema of the sections of all types."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return handler(TypeAdapter(reduce(or_, map(IDENTITIES.load, IDENTITIES.names()))).core_schema)


IdentityConfig = Annotated[IdentitySection, PlainValidator(_parse_identity), _AnySection()]
