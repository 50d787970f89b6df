"""The diagrams of the documentation show the code as it is."""

from __future__ import annotations

from docs.tools.diagrams import IMAGES, PIPELINE, SOURCES, pipeline_source
from gateway.pipeline import SHARED, steps_of_any_route


def test_the_source_of_the_pipeline_is_written_from_the_code() -> None:
    assert PIPELINE.read_text() == pipeline_source(), "run `make diagrams`"


def test_the_picture_of_the_pipeline_has_each_step_with_its_reason() -> None:
    picture = (IMAGES / "pipeline.svg").read_text().replace("&#45;&gt;", "->")
    for name in (*(step.name for step in SHARED), *(name for name, _ in steps_of_any_route())):
        assert name in picture, "run `make diagrams`"


def test_each_source_has_its_picture() -> None:
    assert {source.stem for source in SOURCES.glob("*.dot")} <= {picture.stem for picture in IMAGES.glob("*.svg")}
