"""Whether a route's policy lets an answer be stored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.config.policy.model import AdmissionRules
from gateway.messages import Admission, Call, Inspection

DEFAULT_TEMPERATURE = 1.0  # of the protocols, where a request names none


def unasked(rules: AdmissionRules, temperature: float | None, roles: Iterable[object]) -> Admission | None:
    """Why no answer to this call is stored, whatever it is; None where it depends on the answer. `temperature`: of the
    call, None where it names none; `roles`: of its turns."""
    given = DEFAULT_TEMPERATURE if temperature is None else temperature
    if rules.max_temperature is not None and given > rules.max_temperature:
        return Admission.TEMPERATURE
    if rules.roles is not None and any(role not in rules.roles for role in roles):
        return Admission.ROLE
    return None


def roles_of(call: Call) -> Iterator[object]:
    """Of all turns, in whatever field a protocol has them."""
    body = call.body
    if call.operation == "embeddings":
        return
    if any(body.get(key) for key in ("system", "instructions")):
        yield "system"
    if isinstance(body.get("input"), str):  # of a response: the user's
        yield "user"
    for key in ("messages", "input"):
        turns = body.get(key)
        for turn in turns if isinstance(turns, list) else ():
            if isinstance(turn, dict) and ("role" in turn or key == "messages"):
                yield turn.get("role")


def judged(
    rules: AdmissionRules, inspection: Inspection, dollars: float, size: int = 0, largest: int | None = None
) -> Admission:
    """Of an answer that is there. `dollars`: what the call cost; `size`, `largest`: bytes that it has and may have.
    Bounds on tokens are not held against an answer that does not tell its own."""
    if inspection.admission is not Admission.STORED and not (inspection.admission is Admission.TOOLS and rules.tools):
        return inspection.admission
    tokens = inspection.output_tokens
    if rules.min_tokens is not None and 0 < tokens < rules.min_tokens:
        return Admission.TOO_SHORT
    if rules.max_tokens is not None and tokens > rules.max_tokens:
        return Admission.TOO_LONG
    if rules.min_cost is not None and dollars < rules.min_cost:
        return Admission.TOO_CHEAP
    return Admission.TOO_LARGE if largest is not None and size > largest else Admission.STORED
