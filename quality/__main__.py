"""Measures the hits of the cache and the share of wrong hits: `make quality`. docs/quality.md explains the report."""

# ruff: noqa: T201, S603 (a command prints; it starts commands of ours)
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from gateway.cache.model_factory import build_encoder, build_verifier
from gateway.cache.threshold.ledger import ThresholdLedger
from gateway.config.schema import EmbedderConfig, VerifierConfig
from gateway.ports import TextEncoder
from quality import peers, tables, traps
from quality.cost import cost
from quality.decision import CachingEmbedder
from quality.figures import precision_area, round_floats, served_share_at
from quality.http_run import Setting, run_evaluation, run_own_stub
from quality.labels import Labels, load_audited
from quality.offline import CURVE_SEEDS, PromiseResult, Rung, adaptation, curve, promise
from quality.peers import Comparison
from quality.replay import Replay
from quality.streams import (
    OTHERS,
    Stream,
    from_evaluation,
    from_pairs,
    from_wordings,
    intents,
    join,
    without_others,
)
from quality.world import Opinions, SimilarityVerifier, World, world_of

SECTIONS = ("http", "replay", "domains", "traps", "cost", "peers")
COMPARED_AT = 0.01  # promise of the table of all caches


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make quality", description=__doc__)
    parser.add_argument("--eval", type=lambda text: Path(text).absolute(), help="folder of the evaluation tools")
    parser.add_argument("--pairs", type=Path, help='own pairs, one {"a", "b", "y"} a line')
    parser.add_argument("--data", type=Path, help="folder with banking77_test.csv and clinc150_full.json")
    parser.add_argument("--seeds", type=int, default=10, help="orders of each stream; 50 to speak of a promise")
    parser.add_argument("--limit", type=int, default=5000, help="requests of the stream")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--audit", type=float, default=0.05, help="share of hits")
    parser.add_argument("--verifier", default=VerifierConfig().adapter, help="default: %(default)s")
    parser.add_argument("--embedder", default="onnx", help="of the gateway and of the replays")
    parser.add_argument("--tuned", type=Path, help="data directory whose tuned verifier is a rung of the ladder, too")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument(
        "--tools",
        type=lambda text: str(Path(text).absolute()),
        default=sys.executable,
        help="Python with numpy, scipy and matplotlib",
    )
    parser.add_argument("--folder", type=Path, default=Path("build"), help="for quality.json and what is kept")
    parser.add_argument("--picture", type=Path, help="draw the curves here")
    return parser


class Report:
    """Says each section as soon as it is there; `found` is what quality.json will hold."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.started = time.monotonic()
        self.folder: Path = given.folder / "quality"
        self.encoder: TextEncoder = build_encoder(EmbedderConfig(adapter=given.embedder, threads=1))
        self.verifier = build_verifier(VerifierConfig(adapter=given.verifier), EmbedderConfig())
        self.embedder = CachingEmbedder(self.encoder)
        self.opinions = Opinions(self.verifier, self.folder, self.encoder.fingerprint)
        self.tuned = self._load_tuned(given.tuned)
        self.audited = load_audited()
        self.stream = self._stream()
        self.found: dict[str, Any] = {
            "verifier": self.verifier.basis,
            "embedder": self.encoder.fingerprint,
            "seeds": given.seeds,
            "audit": given.audit,
            "audited_labels": len(self.audited),
            "stream": {
                "name": self.stream.name,
                "requests": self.stream.request_count,
                "repeats": self.stream.repeats,
            },
            "curves": {},
            "ladder": [],
            "replays": [],
        }

    def _load_tuned(self, data_dir: Path | None) -> Opinions | None:
        """Return the verifier that `nearhit tune` has put in force in a data directory; None: no directory is given."""
        if data_dir is None:
            return None
        verifier = build_verifier(VerifierConfig(), EmbedderConfig(), versions=data_dir)
        if verifier.basis == self.verifier.basis:
            raise SystemExit(f"{data_dir} has no tuned verifier in force: expected one that `nearhit tune` has made")
        return Opinions(verifier, self.folder, self.encoder.fingerprint)

    def _stream(self) -> Stream:
        if self.given.eval is not None:
            return from_evaluation(self.given.eval, self.given.limit)
        if self.given.pairs is not None:
            return from_pairs(self.given.pairs, self.given.limit)
        return from_wordings(self.given.limit)

    def print_section(self, title: str, meaning: str, text: str) -> None:
        print(f"\n## {title}\n\n{meaning}\n\n{text}", flush=True)

    def print_progress(self, text: str) -> None:
        print(f"  [{time.monotonic() - self.started:4.0f} s] {text}", file=sys.stderr, flush=True)

    def replay_of(self, world: World, opinions: Opinions | None = None, labels: str = "raw") -> Replay:
        known = Labels(world.stream, self.audited if labels == "audited" else {})
        return Replay(world, opinions or self.opinions, self.embedder, known)

    def run(self) -> None:
        print(f"# Quality: {self.stream.name}, {self.stream.request_count} requests, verifier {self.verifier.basis}\n")
        print(f"A perfect cache would serve {self.stream.repeats:.1%} of them. {len(self.audited)} pairs are audited.")
        if self.stream.name == "wordings":
            print("No evaluation and no pairs are given: these wordings trained the verifier, so its figures flatter.")
        sections = {
            "http": self.http, "replay": self.replays, "domains": self.domains, "traps": self.traps, "cost": self.cost,
            "peers": self.peers,
        }  # fmt: skip
        for name, section in sections.items():
            if name in self.given.only:
                section()
                self.opinions.save()
                if self.tuned is not None:
                    self.tuned.save()
        self.given.folder.mkdir(parents=True, exist_ok=True)
        target = self.given.folder / "quality.json"
        target.write_text(json.dumps(round_floats(self.found), indent=1) + "\n")
        print(f"\nThese figures are in {target}; {time.monotonic() - self.started:.0f} s.")
        if self.given.picture is not None and self.found["curves"]:
            command = [self.given.tools, "-m", "quality.picture", str(target), str(self.given.picture)]
            subprocess.run(command, check=True, cwd=Path.cwd())

    def http(self) -> None:
        audited, setting = Labels(self.stream, self.audited), self._setting()
        runs = []
        for budget in self.given.budgets:
            self.print_progress(f"the stream through the gateway, promise {budget:.0%}")
            if self.given.eval is not None:
                runs.append(run_evaluation(self.given.eval, self.stream, audited, budget, setting, self.given.tools))
            else:
                runs.append(run_own_stub(self.stream, audited, budget, setting))
        self.found["http"] = [asdict(run) for run in runs]
        self.print_section(
            "Through the gateway",
            "`nearhit serve` with a promise, asked over HTTP in the stream's order; right and wrong as a client sees.",
            tables.gateway(runs),
        )

    def _setting(self) -> Setting:
        return Setting(self.given.verifier, self.given.embedder, self.given.audit)

    def replays(self) -> None:
        rows: list[PromiseResult] = []
        plain = world_of(without_others(self.stream), self.encoder, self.folder)
        self._ladder(plain)
        rows += self._promises(plain, grow=False)
        if len(self.stream.questions) - self.stream.request_count >= min(OTHERS, 4 * self.stream.request_count):
            rows += self._promises(world_of(self.stream, self.encoder, self.folder), grow=True)
        else:
            print("\nNo growing cache: it takes thousands of questions beside those that are asked.")
        domains = self._domains()
        if not domains:
            print("\nNo change of domain: DATA names no folder with banking77_test.csv or clinc150_full.json.")
        else:
            rows += self._promises(
                world_of(join(without_others(self.stream), domains[0]), self.encoder, self.folder), grow=False
            )
        self.found["replays"] = [{**asdict(row), "relative": row.relative} for row in rows]
        self.print_section(
            "Promises, replayed",
            f"The production control over {self.given.seeds} orders of each stream, taught and counted by raw and by "
            "audited labels. Hindsight: what fixed thresholds serve at the same error, on scores moved alike.",
            tables.replays(rows),
        )

    def _label_names(self) -> tuple[str, ...]:
        return ("raw", "audited") if self.audited else ("raw",)

    def _ladder(self, world: World) -> None:
        loosest, audit, rungs = max(self.given.budgets), self.given.audit, []
        scores = {"similarity": Opinions(SimilarityVerifier(), None), "verifier": self.opinions}
        if self.tuned is not None:
            scores["tuned"] = self.tuned
        for (name, opinions), labels in product(scores.items(), self._label_names()):
            self.print_progress(f"curve: {name}, {labels} labels")
            replay = self.replay_of(world, opinions, labels)
            points = curve(replay, loosest, learn=False, audit=audit, seeds=self._curve_seeds())
            served = tuple(served_share_at(points, budget) for budget in self.given.budgets)
            rungs.append(Rung(name, labels, served, precision_area(points)))
            if labels == "raw":
                self.found["curves"][name] = [point.as_dict() for point in points]
        self.found["ladder"] = [asdict(rung) for rung in rungs]
        self.print_section(
            "The ladder",
            "Served by the best fixed threshold of hindsight, without learning, at each error of all requests.",
            tables.ladder(rungs, self.given.budgets),
        )

    def _promises(self, world: World, *, grow: bool) -> list[PromiseResult]:
        rows, loosest, audit = list[PromiseResult](), max(self.given.budgets), self.given.audit
        for labels in self._label_names():
            replay = self.replay_of(world, labels=labels)
            self.print_progress(f"hindsight: {world.stream.name}{', grown' if grow else ''}, {labels} labels")
            hindsight = curve(replay, loosest, learn=True, audit=audit, grow=grow, seeds=self._curve_seeds())
            self.opinions.save()
            self.found["curves"].setdefault("evidence", [point.as_dict() for point in hindsight])
            self.print_progress(f"{self.given.seeds} orders online")
            rows += [
                promise(replay, labels, budget, hindsight, seeds=self.given.seeds, audit=audit, grow=grow)
                for budget in self.given.budgets
            ]
        return rows

    def _curve_seeds(self) -> int:
        return min(CURVE_SEEDS, int(self.given.seeds))

    def _domains(self) -> list[Stream]:
        return intents(self.given.data) if self.given.data is not None else []

    def domains(self) -> None:
        rows = []
        for stream in self._domains():
            self.print_progress(f"adaptation: {stream.name}")
            replay = self.replay_of(world_of(stream, self.encoder, self.folder))
            rows += adaptation(replay, self.given.budgets, audit=self.given.audit)
        if rows:
            self.found["domains"] = [asdict(row) for row in rows]
            self.print_section(
                "Adaptation to a domain",
                "Right hits over requests whose intent is in the cache, at the same error of all requests, before and "
                "after labels from misses of the same domain.",
                tables.adaptation(rows),
            )

    def traps(self) -> None:
        pairs = traps.load(self.given.eval)
        verifiers = {"traps": self.opinions} | ({"traps, tuned": self.tuned} if self.tuned is not None else {})
        for name, opinions in verifiers.items():
            ledger = ThresholdLedger(opinions.prior)
            thresholds = {budget: ledger.threshold(budget, entries=1) for budget in self.given.budgets}
            tallies = {b: traps.tally(pairs, opinions, self.embedder, each) for b, each in thresholds.items()}
            self.found[name] = {f"{b:g}": [asdict(each) for each in group] for b, group in tallies.items()}
            self.print_section(
                name.capitalize(),
                "Each pair alone in the cache of a gateway that has seen nothing.",
                tables.traps(tallies, thresholds),
            )

    def cost(self) -> None:
        found = cost(self.verifier, self.encoder)
        self.found["cost_us"] = asdict(found)
        self.print_section("Cost", "p50, one thread, the embedding of the question not counted.", tables.cost(found))

    def peers(self) -> None:
        """Show the figures of the stream that this run has measured beside the public sets of other caches."""
        rows = self._compared() if "http" in self.found or self.found["ladder"] else []
        if self.given.eval is not None:
            self.print_progress("the sets of other caches")
            rows += peers.compare(self.given.eval, COMPARED_AT)
        if rows:
            self.found["peers"] = [asdict(row) for row in rows]
            self.print_section(
                "Head to head",
                "Right hits at 1 %, of what a reader finds possible. Published figures are for sets twice as large.",
                tables.comparison(rows),
            )

    def _compared(self) -> list[Comparison]:
        """Return the figures of the stream, by the labels of readers where there are some."""
        stream, count, labels = self.stream, self.stream.request_count, self._label_names()[-1]
        world = world_of(without_others(stream), self.encoder, self.folder)
        known = peers.possible(world, Labels(stream, self.audited))
        wrong = count * COMPARED_AT
        rows = [
            Comparison(stream.name, f"{rung['score']}, fixed", count, count * served - wrong, wrong, known)
            for rung in self.found["ladder"]
            for budget, served in zip(self.given.budgets, rung["served"], strict=True)
            if rung["labels"] == labels and budget == COMPARED_AT and served is not None
        ]
        rows += [
            Comparison(
                stream.name, "nearhit", count, count * (run["served"] - run["error_audited"]),
                count * run["error_audited"], known,
            )
            for run in self.found.get("http", ())
            if run["budget"] == COMPARED_AT
        ]  # fmt: skip
        return rows


def main() -> None:
    Report(parser().parse_args()).run()


if __name__ == "__main__":
    main()
