"""The tables of docs/configuration.md are those that the models make."""

from __future__ import annotations

import pytest

from docs.tools.tables import PAGE, TABLES, markdown, with_tables


def test_the_page_has_the_tables_that_the_models_make() -> None:
    """If this fails: `make schema`."""
    page = PAGE.read_text()
    assert with_tables(page) == page


@pytest.mark.parametrize(
    "row",
    [
        "| `server.max_body` | `10MiB` |",
        "| `server.tls` | none |",
        "| `server.tls.key` | required |",
        "| `server.body_total` | `15m` |",
        "| `server.compress` | `off` |",
    ],
)
def test_a_default_is_written_as_in_a_file(row: str) -> None:
    assert row in markdown(TABLES["server"])


def test_a_section_has_one_row_and_a_link_to_its_table() -> None:
    assert "| [`server`](#server) | section |" in markdown(TABLES["config"])


def test_keys_that_two_adapters_share_have_one_row() -> None:
    keys = [line.split("`")[1] for line in markdown(TABLES["backends"]).splitlines()[2:]]
    assert len(keys) == len(set(keys))
    assert {"client", "embedding_model", "hedge.after", "upstreams[].weight"} <= set(keys)


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        with_tables("<!-- table: server -->\n<!-- end -->\n")
