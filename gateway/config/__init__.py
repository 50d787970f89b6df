"""`config.yaml`: its schema, and how it is read."""

from gateway.config.auth import Audit, Auth
from gateway.config.backends import (
    BackendConfig,
    BackendSection,
    OnnxBackendConfig,
    OpenAIBackendConfig,
    Price,
    Tensors,
    Timeouts,
    TritonBackendConfig,
)
from gateway.config.load import load_config
from gateway.config.schema import Config, Embedder, Index, Server, Verifier
from gateway.config.store import Store

__all__ = [
    "Audit",
    "Auth",
    "BackendConfig",
    "BackendSection",
    "Config",
    "Embedder",
    "Index",
    "OnnxBackendConfig",
    "OpenAIBackendConfig",
    "Price",
    "Server",
    "Store",
    "Tensors",
    "Timeouts",
    "TritonBackendConfig",
    "Verifier",
    "load_config",
]
