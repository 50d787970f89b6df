"""What a call asks of a plain text model: templates, and what such a model cannot do."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Unfit
from gateway.generation.asked import Sampling, asked_of
from gateway.generation.template import ChatTemplate, TemplateFaulty

ASK = [{"role": "user", "content": "Hello"}]


def test_the_texts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    asked = asked_of({"messages": [{"role": "user", "content": parts}]}, None, Sampling())
    assert asked.messages == ({"role": "user", "content": "one\ntwo"},)


def test_what_the_client_does_not_say_is_as_the_model_has_it() -> None:
    usual = Sampling(0.6, 0.9, 20)
    assert asked_of({"messages": ASK}, None, usual).sampling == usual
    assert asked_of({"messages": ASK, "temperature": 0}, None, usual).sampling.temperature == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("temperature", 3),
        ("top_p", "much"),
        ("seed", 0.5),
        ("stop", ["x"] * 17),
        ("stop", [""]),
        ("top_logprobs", 21),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(Unfit, match=r"expected") as refused:
        asked_of({"messages": ASK, "logprobs": True, field: value}, None, Sampling())
    assert refused.value.status == 400
    assert field in str(refused.value) or field == "top_logprobs"


def test_images_and_calls_of_tools_are_refused() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    for message in (image, called):
        with pytest.raises(Unfit, match=r"messages\[0\]"):
            asked_of({"messages": [message]}, None, Sampling())


def test_a_template_is_given_the_messages_and_the_special_tokens() -> None:
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    source += "{% if add_generation_prompt %}[assistant]{% endif %}"
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(ASK) == "<s>[user]Hello[assistant]"


def test_a_template_may_refuse_messages_and_says_why() -> None:
    with pytest.raises(Unfit, match="no system here"):
        ChatTemplate("{{ raise_exception('no system here') }}", {}).render(ASK)


def test_a_template_sees_nothing_of_the_process() -> None:
    for source in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__subclasses__() }}",
    ):
        with pytest.raises(Unfit, match="chat template refuses") as refused:
            ChatTemplate(source, {}).render(list(ASK))
        assert "Hello" not in str(refused.value)


def test_a_template_that_cannot_be_read_is_said_so() -> None:
    with pytest.raises(TemplateFaulty):
        ChatTemplate("{% for %}", {})
