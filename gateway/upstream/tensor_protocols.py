"""What an HTTP backend does for dialects whose answers are kept in another form than they come in, and whose paths name
models beside those of inference."""

from __future__ import annotations

from dataclasses import replace

from multidict import CIMultiDict

from gateway.dialects.kserve import model_in, renamed
from gateway.dialects.model_names import ModelNames
from gateway.errors import BackendError, BadRequest, Malformed
from gateway.messages import Call, Response, Whole


def in_stored_form(backend: str, call: Call, answer: Response) -> Response:
    """Raises `BackendError` where the answer cannot be read."""
    if answer.status != 200 or not isinstance(answer.body, Whole):
        return answer
    try:
        stored = call.dialect.stored_form(call, answer.body.data, CIMultiDict(answer.headers))
    except (Malformed, BadRequest) as error:
        raise BackendError(f"backend '{backend}': {error}", retryable=False) from None
    return answer if stored is answer.body.data else replace(answer, body=Whole(stored))


def about_a_model(path: str, models: ModelNames) -> str:
    """What is asked about a model is answered of the one that stands behind its name."""
    model = model_in(path)
    return path if model is None else renamed(path, models.sent_for(model))
