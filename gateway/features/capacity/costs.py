"""Loads unit costs and prices. Values in a file of the user replace those of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from gateway.config.errors import ConfigInvalid, unknown_name
from gateway.config.validation import NOT_EMPTY, Section, error_messages
from gateway.config.yaml_loader import YamlSource, load_yaml, read_file

Positive = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]


@dataclass(frozen=True, slots=True)
class Costs:
    """The unit costs of a fleet. costs.yaml gives the unit, meaning and source of each field.

    `_us` means microseconds of one core. `assumed` has the names whose value is not measured.
    """

    exact_loop_us: float
    semantic_loop_us: float
    semantic_threads_us: float
    miss_loop_us: float
    miss_threads_us: float
    event_loop_us: float
    embedding_threads_us: float
    change_loop_us: float
    change_threads_us: float
    exact_store_us: float
    semantic_store_us: float
    miss_store_us: float
    change_store_us: float
    exact_store_bytes: float
    semantic_store_bytes: float
    change_store_bytes: float
    entry_store_bytes: float
    event_store_bytes: float
    entry_index_bytes: float
    gateway_mb: float
    faiss_entries: float
    shard_gb: float
    shard_fill: float
    entry_milvus_bytes: float
    milvus_node_gb: float
    milvus_searches: float
    milvus_inserts: float
    embeddings_per_gpu: float
    light_per_gpu: float
    large_per_gpu: float
    assumed: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices a month of a core, a GB of memory and a GPU, and the price of a GB that is sent to clients.

    The currency is that of the prices file. `assumed` has the names whose price still comes from this package.
    """

    core: float
    memory_gb: float
    gpu: float
    traffic_gb: float
    assumed: frozenset[str] = field(default=frozenset())


class UnitCost(Section):
    """A unit cost in costs.yaml. `source` is the command that measured it, or the source of the assumption."""

    value: Annotated[Positive, Field(examples=[120])]
    unit: str | None = None
    what: str | None = None
    measured: bool = True
    source: str | None = None
    date: str | None = None
    machine: str | None = None


class CostsFile(Section):
    version: Literal[1] = 1
    machines: dict[str, str] = Field(default_factory=dict)
    costs: Annotated[dict[str, UnitCost], NOT_EMPTY]


class PricesFile(Section):
    version: Literal[1] = 1
    currency: str | None = None
    prices: Annotated[dict[str, NotNegative], NOT_EMPTY]


File = TypeVar("File", bound=Section)
COST_NAMES = tuple(f.name for f in fields(Costs) if f.name != "assumed")
PRICE_NAMES = tuple(f.name for f in fields(Prices) if f.name != "assumed")


def shipped_costs() -> CostsFile:
    return _read(_shipped("costs.yaml"), "costs.yaml", CostsFile, "costs", COST_NAMES)


def load_costs(path: Path | None) -> Costs:
    """Return the unit costs of this package, with those of the file at `path` in their place.

    Raises `ConfigInvalid` with every fault of the file.
    """
    costs = dict(shipped_costs().costs)
    if path is not None:
        given = read_file(path, "a file of unit costs such as costs: {miss_loop_us: {value: 900}}")
        costs |= _read(given, str(path), CostsFile, "costs", COST_NAMES).costs
    values: dict[str, float] = {name: costs[name].value for name in COST_NAMES}
    return Costs(**values, assumed=frozenset(name for name in COST_NAMES if not costs[name].measured))


def load_prices(path: Path | None) -> tuple[Prices, str]:
    """Return the prices and their currency, with those of the file at `path` in place of the shipped ones.

    Raises `ConfigInvalid` with every fault of the file.
    """
    shipped = _read(_shipped("prices.yaml"), "prices.yaml", PricesFile, "prices", PRICE_NAMES)
    prices, own, currency = dict(shipped.prices), set[str](), shipped.currency
    if path is not None:
        content = read_file(path, "a file of prices such as prices: {core: 20}")
        given = _read(content, str(path), PricesFile, "prices", PRICE_NAMES)
        prices, own, currency = {**prices, **given.prices}, set(given.prices), given.currency or currency
    return Prices(**prices, assumed=frozenset(prices.keys() - own)), currency or ""


def _shipped(name: str) -> bytes:
    return (resources.files("gateway.features.capacity") / name).read_bytes()


def _read(content: bytes, file: str, kind: type[File], section: str, names: tuple[str, ...]) -> File:
    source = load_yaml(content, file, None)
    faults = [*source.faults, *_unknown_names(source, section, names)]
    try:
        parsed = kind.model_validate(source.value)
    except ValidationError as invalid:
        raise ConfigInvalid(
            [*faults, *(source.fault(path, message) for path, message in error_messages(invalid))]
        ) from None
    if faults:
        raise ConfigInvalid(faults)
    return parsed


def _unknown_names(source: YamlSource, section: str, names: tuple[str, ...]) -> list[Any]:
    written = source.value.get(section)
    if not isinstance(written, Mapping):
        return []
    return [source.fault((section, name), unknown_name("name", name, names)) for name in written if name not in names]
