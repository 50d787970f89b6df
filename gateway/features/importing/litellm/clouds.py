"""Deployments of clouds: their addresses, and the identities that take the place of keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gateway.features.importing.document import Setting
from gateway.features.importing.draft import Draft

Param = Callable[[str], Setting]
"""Returns a setting of an entry by its name."""
Secret = Callable[[Setting, str, str], str]
"""Returns the variable of a secret. It reports the setting; the texts are what stands for it, and its purpose."""

REGION, AWS_KEY, AWS_SECRET = "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
AWS_KEYS = {
    "aws_access_key_id": AWS_KEY,
    "aws_secret_access_key": AWS_SECRET,
    "aws_session_token": "AWS_SESSION_TOKEN",
}
GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
ENTRA = "https://login.microsoftonline.com"
AZURE_SCOPE = "https://cognitiveservices.azure.com/.default"
# How LiteLLM calls a model, or the family of one that was imported: in front of its id.
_BEDROCK_ROUTES = re.compile(
    r"(?:converse|converse_like|invoke|openai|llama|mistral|nova|qwen2|qwen3|deepseek_r1|[a-z]{2}(?:-[a-z]+)+-\d)/"
)
_BEDROCK_REGION = re.compile(r"([a-z]{2}(?:-[a-z]+)+-\d)/")


class Place(NamedTuple):
    """The place of a model in a cloud: its name there, the base URL, and the identity, if the cloud gives one."""

    model: str
    url: str
    identity: Mapping[str, Any]


def bedrock(name: str, param: Param, draft: Draft) -> Place | None:
    """Return the place of a model on Bedrock, and report its settings; None for a model that Converse lacks."""
    if "embed" in name or "rerank" in name:
        return None
    region, endpoint = param("aws_region_name"), param("aws_bedrock_runtime_endpoint")
    in_name = _BEDROCK_REGION.match(name)
    if (url := endpoint.text()) is not None:
        url = url.rstrip("/")
        endpoint.carried(f"url: {url}")
    place = text_of(region, draft, "region of Bedrock") or (
        in_name[1] if in_name else f"${{{draft.need(REGION, 'region of Bedrock')}}}"
    )
    identity = {"type": "aws"}
    if url is None:
        region.carried("the host of the URL names it")
    elif not place.startswith("${"):
        identity["region"] = place
        region.carried(f"identity.region: {place}")
    else:
        region.missing("write its value as identity.region of the backend")
    for key, ours in (("aws_profile_name", "profile"), ("aws_role_name", "role"), ("aws_external_id", "external_id")):
        if param(key).variable() is not None:
            param(key).missing(f"write its value as identity.{ours} of the backend")
        elif (text := param(key).text()) is not None:
            identity[ours] = text
            param(key).carried(f"identity.{ours}: {text}")
    for key, variable in AWS_KEYS.items():
        setting = param(key)
        if setting.is_set:
            draft.need(variable, "credentials of AWS")
            told = setting.carried if setting.variable() == variable else setting.changed
            told(f"nearhit keeps no keys in files: botocore reads {variable}, or the profile in identity.profile")
    param("aws_session_name").changed("sessions of a role have the name nearhit")
    own = param("model_id").text()
    if own is not None:
        param("model_id").carried(f"model: {own}")
    while match := _BEDROCK_ROUTES.match(name):
        name = name[match.end() :]
    return Place(own or name, url or f"https://bedrock-runtime.{place}.amazonaws.com", identity)


def vertex(name: str, param: Param, draft: Draft) -> Place | None:
    """Return the place of a model on Vertex, and report its settings; None for one that its OpenAI-compatible endpoint
    lacks, such as Claude."""
    if not name.startswith("gemini") and "/" not in name:
        return None
    project = _first(param, "vertex_project", "vertex_ai_project")
    location = _first(param, "vertex_location", "vertex_ai_location")
    of = text_of(project, draft, "project on Vertex") or f"${{{draft.need('VERTEXAI_PROJECT', 'project on Vertex')}}}"
    at = text_of(location, draft, "location on Vertex") or "us-central1"  # LiteLLM's default
    project.carried("a part of the URL")
    location.carried("a part of the URL")
    host = "aiplatform.googleapis.com" if at == "global" else f"{at}-aiplatform.googleapis.com"
    credentials = _first(param, "vertex_credentials", "vertex_ai_credentials")
    if credentials.is_set:
        draft.need(GOOGLE_FILE, "path of the file with credentials of Google")
        credentials.changed(f"put them into a file, and its path into {GOOGLE_FILE}: the library of Google reads it")
    url = f"https://{host}/v1/projects/{of}/locations/{at}/endpoints/openapi"
    return Place(name if "/" in name else f"google/{name}", url, {"type": "google"})


CLOUDS: Mapping[str, Callable[[str, Param, Draft], Place | None]] = {"bedrock": bedrock, "vertex_ai": vertex}


def text_of(setting: Setting, draft: Draft, purpose: str) -> str | None:
    """Return the text of a setting, whose variable the new configuration needs, too."""
    if (variable := setting.variable()) is not None:
        draft.need(variable, purpose)
    return setting.text()


def azure_identity(param: Param, draft: Draft, secret: Secret, *, refreshes: bool) -> Mapping[str, Any]:
    """Return the identity of a deployment of Azure without a key; empty if it has none. With `refreshes`, LiteLLM gets
    tokens of Entra ID for all of them."""
    parts = [param(key) for key in ("tenant_id", "client_id", "client_secret")]
    texts = [text_of(part, draft, f"{part.name} of Entra ID") for part in parts[:2]]
    if all(texts) and parts[2].is_set:
        scope = param("azure_scope").text() or AZURE_SCOPE
        param("azure_scope").carried(f"identity.scope: {scope}")
        for part in parts[:2]:
            part.carried("identity: {type: oauth, ...}")
        return {
            "type": "oauth",
            "token_url": f"{ENTRA}/{texts[0]}/oauth2/v2.0/token",
            "client_id": texts[1],
            "client_secret_env": secret(parts[2], "identity.client_secret_env", "client secret of Entra ID"),
            "scope": scope,
        }
    token = param("azure_ad_token")
    if not (token.is_set or refreshes):
        return {}
    token.changed("identity: {type: azure}: nearhit gets tokens of Entra ID itself, and renews them")
    for part, ours in zip(parts[:2], ("tenant_id", "client_id"), strict=True):
        part.carried(f"identity.{ours}")
    given = zip(("tenant_id", "client_id"), texts, strict=True)
    return {"type": "azure"} | {ours: text for ours, text in given if text}


def _first(param: Param, *names: str) -> Setting:
    """Return the first of several settings that is set."""
    return next((setting for name in names if (setting := param(name)).is_set), param(names[0]))
