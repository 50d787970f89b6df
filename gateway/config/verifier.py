"""The section `verifier`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from gateway.config.fields import Text, beside_triton, switched
from gateway.config.units import PositiveDuration
from gateway.config.urls import GrpcUrl
from gateway.config.validation import Problem, Section, one_of


class CrossEncoder(Section):
    """Where the closer look is taken."""

    adapter: Annotated[Literal["onnx", "triton"], one_of("onnx", "triton")] = "onnx"
    url: GrpcUrl | None = None  # triton: the server
    model: Text = "cross_encoder"  # triton: its name there
    timeout: PositiveDuration = 0.25  # triton: of one pair

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        return beside_triton(given, ("url", "model", "timeout"))


_cross_encoder = switched(CrossEncoder, "{adapter: triton, url: grpc://127.0.0.1:8001}")


class Verifier(Section):
    """What decides whether a neighbour's answer may be served."""

    adapter: Annotated[Literal["checks", "learned"], one_of("checks", "learned")] = "learned"
    # A closer look at what lies near the threshold; learned. None: off.
    cross_encoder: Annotated[
        CrossEncoder | None, BeforeValidator(_cross_encoder, json_schema_input_type=CrossEncoder | str | bool | None)
    ] = CrossEncoder()
