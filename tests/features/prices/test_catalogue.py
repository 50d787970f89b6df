"""The catalogue of list prices: whose list it is, which day counts, and how it is renewed."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.config import Config
from gateway.errors import StartupError
from gateway.features.prices.catalogue import NAME, Catalogue, load_catalogue
from gateway.features.prices.doctor import unpriced
from gateway.pipeline import Deployment
from gateway.prices import Tariff, Tokens, Unit
from gateway.upstream.tariffs import tariffs_of
from tests.fixtures.gateways import EXACT_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion


def day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def document(*prices: dict[str, Any]) -> dict[str, Any]:
    model = {"id": "m", "match": {"equals": "m"}, "modalities": ["text"], "prices": list(prices)}
    provider = {"id": "acme", "name": "Acme", "address": r"https://api\.acme\.ai", "others": [], "models": [model]}
    return {"format": 1, "source": "a test", "providers": [provider]}


def config_with(tmp_path: Path, url: str = "https://api.openai.com/v1", **backend: Any) -> Config:
    return config_of(tmp_path, {"main": {"adapter": "openai", "url": url, **backend}})


def tariff_with(tmp_path: Path, url: str = "https://api.openai.com/v1", **backend: Any) -> Tariff:
    return tariffs_of(config_with(tmp_path, url, **backend))["main"]


def test_a_call_costs_what_its_day_says() -> None:
    model = Catalogue(document({"input": 4.0}, {"from": "2026-05-01", "input": 1.0})).find("acme", "m")
    assert model is not None
    days = ("2026-04-30T23:59", "2026-05-01T00:00")
    assert [model.price_at(day(each)).input_per_million for each in days] == [4.0, 1.0]


def test_a_price_by_the_hour_counts_in_its_hours_alone() -> None:
    model = Catalogue(document({"input": 1.0}, {"hours": [16 * 60 + 30, 30], "input": 0.5})).find("acme", "m")
    assert model is not None
    hours = {"16:29": 1.0, "16:30": 0.5, "23:59": 0.5, "00:29": 0.5, "00:30": 1.0}
    assert {h: model.price_at(day(f"2026-11-01T{h}")).input_per_million for h in hours} == hours


@pytest.mark.parametrize(
    ("url", "model", "dollars"),
    [
        ("https://api.openai.com/v1", "gpt-4o", 2.5),
        ("https://acme.openai.azure.com/openai/v1", "gpt-4o", 2.5),
        ("https://openrouter.ai/api/v1", "anthropic/claude-sonnet-4", 3.0),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-pro", 1.25),
    ],
)
def test_the_address_tells_whose_list_counts(tmp_path: Path, url: str, model: str, dollars: float) -> None:
    assert tariff_with(tmp_path, url).price(model).input_per_million == dollars


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/v1", "http://vllm:8000/v1", "http://vllm.ai.svc.cluster.local/v1", "http://[::1]/v1"]
)
def test_a_model_of_ones_own_has_no_list_price(tmp_path: Path, url: str) -> None:
    tariff = tariff_with(tmp_path, url)
    assert not tariff.charges
    assert not tariff.price("gpt-4o").is_stated


def test_the_price_of_a_backend_overrides_the_list(tmp_path: Path) -> None:
    own = tariff_with(tmp_path, price={"input_per_million": 1.0})
    assert (own.price("gpt-4o").input_per_million, own.price("gpt-4o").output_per_million) == (1.0, 0.0)
    part = tariff_with(tmp_path, price={"catalogue": "openai", "input_per_million": 1.0})
    assert (part.price("gpt-4o").input_per_million, part.price("gpt-4o").output_per_million) == (1.0, 10.0)
    assert not tariff_with(tmp_path, price={"catalogue": "off"}).charges
    free = tariff_with(tmp_path, price={"input_per_million": 0}).price("gpt-4o")
    assert (free.is_stated, free.of(1_000, 1_000)) == (True, 0.0)


def test_the_model_that_goes_upstream_is_priced(tmp_path: Path) -> None:
    tariff = tariff_with(tmp_path, model="gpt-4o-mini", models={"big*": "gpt-4o"})
    assert [tariff.price(name).input_per_million for name in ("anything", "bigger")] == [0.15, 2.5]


def test_a_reranking_costs_its_searches(tmp_path: Path) -> None:
    """A list price of tokens would make it free: its answer reports search units alone."""
    tariff = tariff_with(tmp_path, "https://api.cohere.com")
    for model, dollars in (("rerank-v3.5", 0.002), ("rerank-v4.0-pro", 0.0025), ("cohere/rerank-v3.5", 0.002)):
        price = tariff.price(model)
        assert price.of_answer("/v2/rerank", Tokens(), Unit.SEARCH, 3) == pytest.approx(3 * dollars), model
    assert not tariff.price("rerank-v9").is_stated


@pytest.mark.parametrize("named", ["nobody", "openai/gpt-99"])
def test_a_list_that_does_not_exist_stops_the_start(tmp_path: Path, named: str) -> None:
    with pytest.raises(StartupError, match=r"backends\.main\.price\.catalogue: "):
        tariff_with(tmp_path, price={"catalogue": named})


def test_doctor_names_the_models_that_are_not_priced(tmp_path: Path) -> None:
    (finding,) = unpriced(config_with(tmp_path, model="my-own-model"))
    assert "my-own-model not in the list prices of openai" in finding.found
    assert not [*unpriced(config_with(tmp_path, model="gpt-4o"))]


def test_backends_with_list_prices_are_metered(tmp_path: Path) -> None:
    assert Deployment.of(config_with(tmp_path)).priced == {"main"}
    assert not Deployment.of(config_with(tmp_path, "http://127.0.0.1:8000/v1")).priced


def test_a_gateway_of_own_models_reads_no_catalogue() -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom gateway.upstream.tariffs import tariffs_of\n"
        "from gateway.config.policy.single_backend import upstream_config\n"
        "tariffs_of(upstream_config('http://127.0.0.1:8000/v1', {})[0])\n"
        "print([name for name in sys.modules if name.startswith('gateway.features.prices')])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


async def test_calls_and_hits_count_at_list_prices(upstream: Upstream, tmp_path: Path) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({**completion(call, "done"), "usage": usage})

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "price": {"catalogue": "openai"}}})
    dollars = (600 * 2.5 + 400 * 1.25 + 100 * 10) / 1e6
    async with gateway_of(config, EXACT_CACHE) as served:
        for _ in range(2):
            assert (await served.chat("q", model="gpt-4o")).status == 200
        telemetry = served.gateway.parts.telemetry
        assert telemetry.cost.total() == pytest.approx(dollars)
        assert telemetry.cost_saved.total() == pytest.approx(dollars)


# A package of the shape of genai-prices, since the environment of the tests does not have it.
PACKAGE = """
from datetime import date, time
from decimal import Decimal
from types import SimpleNamespace as N
price = N(input_mtok=N(base=Decimal("1"), tiers=[N(start=200000, price=Decimal("2"))]), output_mtok=Decimal("8"),
          audio_hours=Decimal("6"))
model = N(id="m", match=N(or_=[N(starts_with="M-"), N(equals="m")]), context_window=9, prices=[
    N(constraint=None, prices=price), N(constraint=N(start_date=date(2026, 5, 1)), prices=N(input_mtok=Decimal("0.5"))),
    N(constraint=N(start_time=time(1), end_time=time(2)), prices=N(input_mtok=Decimal("0.25")))])
providers = [N(id="acme", name="Acme", api_pattern="https://api", fallback_model_providers=None, models=[model])]
"""


def test_refresh_writes_the_list_of_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "genai_prices").mkdir()
    (tmp_path / "genai_prices" / "__init__.py").touch()
    (tmp_path / "genai_prices" / "data.py").write_text(PACKAGE)
    facts = tmp_path / "genai_prices-9.9.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: genai-prices\nVersion: 9.9\n")
    root = Path(__file__).parents[3]
    script = f"import sys; sys.path[:0] = [{str(root)!r}, {str(tmp_path)!r}]; from gateway.__main__ import main; "
    output = tmp_path / "var" / NAME
    command = [
        sys.executable,
        "-c",
        script + f"sys.exit(main(['prices', 'refresh', '--json', '--output', {str(output)!r}]))",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == {"file": str(output), "source": "genai-prices 9.9", "models": 1}
    catalogue = load_catalogue(tmp_path / "var")
    model = catalogue.find("acme", "m-large")
    assert (catalogue.source, model and model.window) == ("genai-prices 9.9", 9)
    assert model is not None
    assert model.price_at(day("2026-01-01")).of(200_001, 0) == pytest.approx(0.400002)
    assert model.price_at(day("2026-06-01")).input_per_million == 0.5
    assert model.price_at(day("2026-06-01T01:30")).input_per_million == 0.25


@pytest.mark.parametrize("content", [b"{", orjson.dumps({"format": 2, "source": "later", "providers": []})])
def test_a_damaged_catalogue_stops_the_start_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(StartupError, match="nearhit prices refresh"):
        load_catalogue(tmp_path)
