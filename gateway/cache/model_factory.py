"""Build the models that a configuration names: the embedder, the verifier and the cross-encoder."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.adapters.embedding.embedders import BatchingEmbedder, InlineEmbedder
from gateway.adapters.onnx.cross_encoder import OnnxCrossEncoder
from gateway.adapters.onnx.encoder import MAX_BATCH, OnnxEncoder
from gateway.adapters.onnx.model_files import (
    MANIFEST_FILE,
    MODEL,
    MODEL_FILE,
    TOKENIZER_FILE,
    default_model_dir,
    load_manifest,
    model_dir_of,
)
from gateway.adapters.system.clock import SystemClock
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.pair_queue import PairQueue
from gateway.cache.verifier_versions import VerifierVersions
from gateway.cache.verifiers import WEIGHTS, CrossEncoder, LearnedVerifier, TwoStageVerifier, load_weights
from gateway.config import VerifierConfig
from gateway.config.schema import CrossEncoderConfig, EmbeddingModel
from gateway.errors import StartupError
from gateway.ports import TextEncoder, Verifier

if TYPE_CHECKING:
    from gateway.adapters.embedding.hashing import HashEncoder

LOG = logging.getLogger("nearhit.semantic")


def build_encoder(config: EmbeddingModel, data_dir: Path | None = None) -> TextEncoder:
    """Build the encoder. Raise `ModelMissing`, `ModelCorrupt` or `StartupError`.

    `data_dir` records the properties of a served model, in case its server is down at a later start.
    """
    if config.adapter == "hash":
        return _hash_encoder()
    if config.adapter == "onnx":
        return OnnxEncoder(model_dir_of(config), threads=config.threads)
    if config.adapter == "triton":
        return _triton_encoder(config, data_dir)
    try:
        # an extra of several GB: imported on demand
        module = importlib.import_module("gateway.adapters.embedding.sentence_transformers")
    except ImportError as error:
        raise StartupError(
            "embedder.adapter sentence-transformers needs an extra that is not installed "
            f"({error}): pip install 'nearhit[sentence-transformers]'"
        ) from None
    encoder: TextEncoder = module.SentenceTransformersEncoder(config.model, config.device)
    return encoder


def _hash_encoder() -> HashEncoder:
    """Build the encoder of benches and tests."""
    encoder: HashEncoder = importlib.import_module("gateway.adapters.embedding.hashing").HashEncoder()
    return encoder


def _triton_encoder(config: EmbeddingModel, data_dir: Path | None) -> TextEncoder:
    """Build an encoder on a Triton server, which is called here. Raise `ModelMissing` or `StartupError`."""
    # gRPC and its messages are large: imported on demand
    module = importlib.import_module("gateway.features.triton.encoder")
    tokenizer = (config.model_dir or default_model_dir()) / config.tokenizer / TOKENIZER_FILE
    encoder: TextEncoder = module.TritonEncoder(
        config.url,
        config.model,
        tokenizer,
        timeout_s=config.timeout,
        clock=SystemClock(),
        data_dir=data_dir,
    )
    return encoder


def build_verifier(
    config: VerifierConfig,
    embedder: EmbeddingModel,
    data_dir: Path | None = None,
    versions: Path | None = None,
    pairs: PairQueue | None = None,
) -> Verifier:
    """Build the verifier. A cross-encoder on a server is called here. `data_dir` is that of `build_encoder`.

    `versions` is the data directory whose tuned verifier is used, by default `data_dir`. A tuned verifier that is
    damaged, or was made for another embedder, is not used, and a warning is logged. `pairs` counts what waits for the
    cross-encoder.

    Raise `ModelMissing`, `ModelCorrupt`, or `StartupError` where the weights differ from the trained ones, here or on
    the server.
    """
    try:
        if config.adapter == "checks":
            checks: Verifier = importlib.import_module("gateway.cache.threshold_verifier").ThresholdVerifier()
            return checks
        if (tuned := _tuned_verifier(config, embedder, versions or data_dir, pairs)) is not None:
            return tuned
        learned = LearnedVerifier(load_weights())
        closer = _cross_encoder(config.cross_encoder, embedder, data_dir)
        return learned if closer is None else TwoStageVerifier(learned, closer, pairs)
    except WeightsCorrupt as error:
        raise StartupError(str(error)) from None


def can_tune(config: VerifierConfig, embedder: EmbeddingModel) -> bool:
    """Return whether tuned weights serve this configuration: both models run in this process."""
    closer = config.cross_encoder
    return (
        config.adapter == "learned"
        and closer is not None
        and closer.adapter == "onnx"
        and embedder.adapter == "onnx"
        and embedder.model == MODEL
    )


def embedder_name(embedder: EmbeddingModel) -> str:
    """Return the name of the embedding model's file, which the numbers of tuned weights fit.

    Raise `ModelMissing` or `ModelCorrupt`.
    """
    manifest = load_manifest(model_dir_of(embedder))
    return f"{manifest.model}/{manifest.sha256[MODEL_FILE][:12]}"


def _tuned_verifier(
    config: VerifierConfig, embedder: EmbeddingModel, data_dir: Path | None, pairs: PairQueue | None
) -> TwoStageVerifier | None:
    """Return the verifier that `nearhit tune` put in force, or None if there is none, or it cannot be used."""
    if data_dir is None:
        return None
    try:
        versions = VerifierVersions(data_dir)
        version = versions.in_force()
        if version is None:
            return None
        if not can_tune(config, embedder):
            raise WeightsCorrupt(f"the verifier {version} needs the embedder {MODEL} and the cross-encoder in process")
        directory = versions.directory(version, embedder_name(embedder))
        learned = LearnedVerifier(load_weights(directory), version)
        return TwoStageVerifier(learned, OnnxCrossEncoder(model_dir_of(embedder), directory), pairs)
    except WeightsCorrupt as error:
        LOG.warning(
            "the tuned verifier is not used, the shipped one is in its place: see `nearhit tune --list`",
            extra={"fields": {"error": str(error)}},
        )
        return None


def _cross_encoder(
    section: CrossEncoderConfig | None, embedder: EmbeddingModel, data_dir: Path | None
) -> CrossEncoder | None:
    if section is None:
        return None
    if section.adapter == "triton":
        # imported on demand, as in `_triton_encoder`
        module = importlib.import_module("gateway.features.triton.cross_encoder")
        tokenizer = (embedder.model_dir or default_model_dir()) / MODEL / TOKENIZER_FILE
        closer: CrossEncoder = module.TritonCrossEncoder(
            section.url,
            section.model,
            tokenizer,
            timeout_s=section.timeout,
            clock=SystemClock(),
            weights=WEIGHTS,
            data_dir=data_dir,
        )
        return closer
    if embedder.adapter not in ("onnx", "sentence-transformers"):
        return None
    # It reads the word embeddings of the model that it was trained with, whichever model embeds.
    words = (embedder.model_dir or default_model_dir()) / MODEL
    is_embedder = embedder.adapter == "onnx" and embedder.model == MODEL
    return OnnxCrossEncoder(words, WEIGHTS) if is_embedder or (words / MANIFEST_FILE).is_file() else None


def build_embedder(
    config: EmbeddingModel, data_dir: Path | None = None
) -> tuple[TextEncoder, BatchingEmbedder | InlineEmbedder]:
    """Build the encoder and its embedder. See `build_encoder`."""
    if config.adapter == "hash":
        hashing = _hash_encoder()
        return hashing, InlineEmbedder(hashing)
    encoder = build_encoder(config, data_dir)
    batch_limit = MAX_BATCH if config.adapter == "onnx" else None
    return encoder, BatchingEmbedder(encoder, batch_limit=batch_limit, timeout_s=config.timeout)
