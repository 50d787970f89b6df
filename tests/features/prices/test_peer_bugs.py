"""Faults of other gateways and trackers in what a call costs, rebuilt: each names the report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.anthropic.answers import inspect as inspect_message
from gateway.dialects.model_names import ModelNames
from gateway.dialects.openai.answers import inspect
from gateway.dialects.usage import usage_in
from gateway.features.prices.catalogue import Catalogue, load_catalogue
from gateway.features.prices.lists import ListTariff
from gateway.prices import Price, Tokens, Unit

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_catalogue(None)


def price_of(catalogue: Catalogue, provider: str, model: str, at: float = NOW) -> Price:
    found = catalogue.find(provider, model)
    assert found is not None
    return found.price_at(at)


def chat_tokens(usage: dict[str, Any]) -> Tokens:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
    return inspect("chat", [json.dumps({"choices": [choice], "usage": usage}).encode()], False).tokens


def test_cached_tokens_are_not_billed_twice(catalogue: Catalogue) -> None:
    """BerriAI/litellm#14849 and #6215: hits of the prompt cache were billed as input, and as cached input again."""
    tokens = chat_tokens(
        {"prompt_tokens": 2006, "completion_tokens": 300, "prompt_tokens_details": {"cached_tokens": 1920}}
    )
    assert tokens == Tokens(2006, 300, 1920)
    price = price_of(catalogue, "openai", "gpt-4o")
    assert price.of(*tokens) == pytest.approx((86 * 2.5 + 1920 * 1.25 + 300 * 10) / 1e6)


def test_what_goes_to_the_prompt_cache_is_billed_once(catalogue: Catalogue) -> None:
    """BerriAI/litellm#9812: tokens written to Anthropic's cache were billed as input, too: 0.091 dollars, not 0.054."""
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "output_tokens": 550,
    }
    message = {
        "type": "message",
        "role": "assistant",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "x"}],
        "usage": usage,
    }
    tokens = inspect_message([json.dumps(message).encode()], False).tokens
    assert tokens == Tokens(12307, 550, 0, 12304)
    price = price_of(catalogue, "anthropic", "claude-3-7-sonnet-20250219")
    assert price.of(*tokens) == pytest.approx(0.054399, abs=1e-6)


def test_a_stream_bills_cached_input_as_a_whole_answer_does(catalogue: Catalogue) -> None:
    """BerriAI/litellm#11789: in streams of Anthropic, cached input was billed as other input."""
    start = {"input_tokens": 4, "cache_read_input_tokens": 2455, "cache_creation_input_tokens": 0, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"type": "message", "role": "assistant", "content": [], "usage": start}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 23}},
        {"type": "message_stop"},
    ]
    tokens = inspect_message([json.dumps(event).encode() for event in events], True).tokens
    assert tokens == Tokens(2459, 23, 2455)
    price = price_of(catalogue, "anthropic", "claude-sonnet-4-20250514")
    assert price.of(*tokens) == pytest.approx((4 * 3 + 2455 * 0.3 + 23 * 15) / 1e6)


@pytest.mark.parametrize(
    ("prompt", "dollars"), [(200_000, 0.25 + 0.01), (200_001, 0.5000025 + 0.015)], ids=["at-200k", "above"]
)
def test_above_a_tier_the_whole_call_costs_more(catalogue: Catalogue, prompt: int, dollars: float) -> None:
    """NousResearch/hermes-agent#93678 and AstroQore/vibe-bar#29: the tier is a switch for the call, and its output has
    it by the length of the prompt."""
    price = price_of(catalogue, "google", "gemini-2.5-pro")
    assert price.of(prompt, 1_000) == pytest.approx(dollars)
    assert price.of(1_000, 250_000) == pytest.approx(0.00125 + 2.5)  # a long answer is no tier


def test_reasoning_is_part_of_the_output(catalogue: Catalogue) -> None:
    """decolua/9router#2762: reasoning was billed on top of the output that has it already."""
    tokens = chat_tokens(
        {"prompt_tokens": 10, "completion_tokens": 100, "completion_tokens_details": {"reasoning_tokens": 90}}
    )
    assert tokens == Tokens(10, 100, 0, 0, 90)
    assert price_of(catalogue, "openai", "o1").of(*tokens) == pytest.approx((10 * 15 + 100 * 60) / 1e6)
    assert Price(0, 10, reasoning_per_million=40).of(*tokens) == pytest.approx((10 * 10 + 90 * 40) / 1e6)


@pytest.mark.parametrize(("candidates", "total"), [(20, 130), (120, 130)], ids=["apart", "within"])
def test_thoughts_of_gemini_count_once(candidates: int, total: int) -> None:
    """confident-ai/deepeval#2943 left them out. headroomlabs-ai/headroom#2639: some have them in both counts."""
    usage = {
        "promptTokenCount": 10,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": 100,
        "totalTokenCount": total,
    }
    assert usage_in({"usageMetadata": usage}).tokens == Tokens(10, 120, 0, 0, 100)


def tariff(provider: str, folder: Path, fixed: str | None = None, **stated: Any) -> ListTariff:
    return ListTariff("main", provider, fixed, ModelNames(), stated, folder, lambda: NOW)


def test_what_is_stated_replaces_no_other_unit_of_the_list(tmp_path: Path) -> None:
    """Pictures have no list price, so an operator states theirs; transcriptions of the list became free by that."""
    openai = tariff("openai", tmp_path, per_unit=((Unit.IMAGE, 0.04),), per_call=(("/v1/images/*", 0.01),))
    minute = openai.price("whisper-1").of_unit(Unit.MINUTE)
    assert minute == pytest.approx(0.006 / 60)
    assert openai.price("whisper-1").of_unit(Unit.IMAGE) == 0.04
    cheaper = tariff("openai", tmp_path, per_unit=((Unit.MINUTE, 0.003),))
    assert cheaper.price("whisper-1").of_unit(Unit.MINUTE) == pytest.approx(0.003 / 60)
    perplexity = tariff("perplexity", tmp_path, per_call=(("/v1/images/*", 0.01),)).price("sonar")
    assert (perplexity.of_call("/v1/images/edits"), perplexity.of_call("/v1/chat/completions")) == (0.01, 0.012)


def test_what_is_stated_counts_above_a_tier_too(tmp_path: Path) -> None:
    """A rebate for input ended at 200,000 tokens: beyond them the list's price counted."""
    listed = tariff("google", tmp_path).price("gemini-2.5-pro")
    stated = tariff("google", tmp_path, input_per_million=1.0).price("gemini-2.5-pro")
    assert listed.of(300_000, 0) == pytest.approx(0.75)
    assert stated.of(300_000, 0) == pytest.approx(0.3)
    assert stated.of(300_000, 1_000) - stated.of(300_000, 0) == pytest.approx(0.015)  # the output has the list's tier


def test_a_deployment_with_a_name_of_its_own_is_not_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """microsoft-foundry/Model-Router-Auto-Evaluation#2 and BerriAI/litellm#1810: its calls cost 0 dollars."""
    azure = tariff("azure", tmp_path)
    assert [azure.price("baseline").is_stated for _ in range(3)] == [False] * 3
    assert [record.message for record in caplog.records].count(
        "calls of this model are not priced: state its price, or the model to price it as"
    ) == 1
    assert tariff("azure", tmp_path, "gpt-4o").price("baseline").output_per_million == 10
    assert azure.price("gpt-35-turbo").input_per_million == 0.5  # Azure's own spelling


@pytest.mark.parametrize(
    "name",
    [
        "us.anthropic.claude-sonnet-4-20250514-v1:0",
        "anthropic.claude-sonnet-4-20250514-v1:0",
        "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-20250514-v1:0",
        "bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0",
    ],
)
def test_inference_profiles_of_bedrock_have_a_price(tmp_path: Path, name: str) -> None:
    """docker/docker-agent#1353, langfuse/langfuse#13325: prefixes of regions and ARNs cost nothing."""
    aws = tariff("aws", tmp_path)
    assert (aws.price(name).input_per_million, aws.price(name).output_per_million) == (3, 15)
    opaque = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/a1b2c3"
    assert not aws.price(opaque).is_stated


def test_a_listed_model_without_a_usable_price_is_not_free(catalogue: Catalogue) -> None:
    """aaif-goose/goose#11430: an entry of the catalogue without amounts was shown as 0.00 dollars."""
    unpriced = [each for each in catalogue.models() if not each.price_at(NOW).is_stated]
    assert unpriced
    assert all(each.price_at(NOW) == Price() for each in unpriced)


@pytest.mark.parametrize(
    ("provider", "name", "same_as"),
    [
        ("openai", "openai/gpt-4o", "gpt-4o"),
        ("openai", "GPT-4o", "gpt-4o"),
        ("openai", "gpt-5.2-20251211", "gpt-5.2"),
        ("google", "publishers/google/models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("google", "models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("anthropic", "claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("azure", "azure/gpt-4o-mini", "gpt-4o-mini"),
    ],
)
def test_a_model_is_found_by_the_names_that_clients_send(
    catalogue: Catalogue, provider: str, name: str, same_as: str
) -> None:
    """BerriAI/litellm#37867: a model under another spelling was logged with a cost of 0."""
    assert catalogue.find(provider, name) == catalogue.find(provider, same_as) is not None


def test_a_mini_model_is_not_priced_as_its_large_one(catalogue: Catalogue) -> None:
    found = [catalogue.find("openai", name) for name in ("gpt-4o", "gpt-4o-mini", "ft:gpt-4o-mini-2024-07-18:acme::x")]
    assert [each.price_at(NOW).input_per_million for each in found if each] == [2.5, 0.15, 0.3]
    assert catalogue.find("openai", "gpt-99") is None
