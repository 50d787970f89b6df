"""What `nearhit cache` says to people."""

from __future__ import annotations

from typing import Any

from gateway.cli.warming import Summary

OF_BEFORE = "the store does not answer: what is said of it is of before"
NONE_YET = "the store does not answer: nothing is known of it"


def purge_text(outcome: dict[str, Any], *, dry_run: bool) -> str:
    lines = [_sample_text(sample) for sample in outcome["samples"]]
    if outcome["matched"] > len(lines):
        lines.append(f"... and {outcome['matched'] - len(lines)} more")
    lines += outcome.get("notes", ())  # a gateway of before says none
    if dry_run:
        lines.append(f"{outcome['matched']} would be removed")
    else:
        unknown = "" if outcome["durable"] else "; the store does not say that the removal has reached its disk"
        lines.append(f"{outcome['removed']} removed{unknown}")
    return "\n".join(lines)


def _sample_text(sample: dict[str, Any]) -> str:
    """On one line, and without what a terminal would obey: clients wrote most of it."""
    shown = (
        sample["fingerprint"][:12],
        sample["route"],
        sample["tenant"],
        sample["model"],
        f"{sample['age_s']:.0f} s",
        ",".join(sample["tags"]) or "-",
        sample["question"] or "-",
    )
    return "".join(c if c.isprintable() else " " for c in "  ".join(shown))


def stats_text(figures: dict[str, Any]) -> str:
    hit_rate = "-" if figures["hit_rate"] is None else f"{figures['hit_rate']:.1%}"
    lines = [f"{'':10}{'entries':>12}{'bytes':>16}"]
    lines += [
        f"{kind:10}{count:>12.0f}{figures['bytes'].get(kind, 0):>16.0f}"
        for kind, count in sorted(figures["entries"].items())
    ]
    if not figures["store_answers"]:
        lines.append(OF_BEFORE if "store" in figures["entries"] else NONE_YET)
    verdicts = ", ".join(f"{name} {count:.0f}" for name, count in figures["verdicts"].items())
    refused = f"; {figures['unrouted']:.0f} of the misses met no route, and do not count" if figures["unrouted"] else ""
    lines.append(f"hit rate  {hit_rate} ({verdicts}{refused})")
    return "\n".join([*lines, f"saved     {figures['tokens_saved']:.0f} tokens"])


def warm_text(summary: Summary) -> str:
    text = f"{summary.stored} stored, {summary.hits} hits, {summary.not_stored} not stored, {summary.failed} failed"
    return text if summary.first_failure is None else f"{text} (the first one: {summary.first_failure})"
