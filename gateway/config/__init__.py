"""The configuration: the schema of `config.yaml`, and its loader."""

from gateway.config.auth import AuditTrailConfig, AuthConfig
from gateway.config.backends import (
    BackendConfig,
    BackendSection,
    OpenAIBackendConfig,
    PriceConfig,
    Timeouts,
)
from gateway.config.load import load_config
from gateway.config.schema import Config, EmbedderConfig, IndexConfig, ServerConfig, VerifierConfig
from gateway.config.store import StoreConfig

__all__ = [
    "AuditTrailConfig",
    "AuthConfig",
    "BackendConfig",
    "BackendSection",
    "Config",
    "EmbedderConfig",
    "IndexConfig",
    "OpenAIBackendConfig",
    "PriceConfig",
    "ServerConfig",
    "StoreConfig",
    "Timeouts",
    "VerifierConfig",
    "load_config",
]
