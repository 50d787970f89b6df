"""Decides whether a version gets more calls, stays as it is, or goes back. Pure.

Audits ask the large model and both versions the same question. The questions that just one of the versions answers as
the large model does decide (McNemar, 1947, in its exact form). Looks at growing evidence share one error of 5 %.
Look k comes at 25 * 2^k audits, and may err with 5 % / 2^(k + 1), which is a union bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import sqrt
from statistics import NormalDist

from gateway.cache.threshold.wrong_hits import chance_of_heads, wilson_interval
from gateway.features.light.rule import RolloutRule
from gateway.features.light.state import Rollout

FIRST_LOOK = 25  # audits
ERROR = 0.05  # chance to reject a version that is as good, over all looks of a step
WATCH_ERROR = 0.01  # the same for a window of audits of a version in force
WINDOW = 400  # audits after which the evidence on a version in force begins anew, so that old audits hide no drift
FAILURE_ERROR = 0.001  # failures are looked at every few seconds
MIN_FAILURES = 3
FAILURE_FLOOR = 0.02  # share of failed calls that no version is rolled back for
SLOW_SHARE = 0.1  # of the answers of a version that may be slower than allowed
SLOW_FLOOR_S = 0.02  # more than so much slower, too: a busy machine delays an answer of 1 ms by 10
PERCENTILE = 0.95
BUCKETS = 64  # of times: bucket n ends at 2^(n / 4 - 10) s, 1 ms to 3 hours
NORMAL = NormalDist()


class Move(StrEnum):
    HOLD = "hold"  # nothing is decided yet
    LOOKED = "looked"  # a look that decides nothing
    WINDOW_OVER = "window over"  # a version in force keeps its place, and its evidence begins anew
    UP = "up"
    BACK = "back"
    OUT = "out"  # the version and the one before are both too bad


@dataclass(frozen=True, slots=True)
class Verdict:
    move: Move
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The counts of one epoch, of all gateways. Times are counts by bucket."""

    audits: int = 0  # compared with an answer of the large model
    right: int = 0  # of these, answered as the large model does
    right_before: int = 0  # the same of the reference
    won: int = 0  # right, where the reference is wrong
    lost: int = 0  # wrong, where the reference is right
    slower: int = 0  # took longer than allowed, by the time of the reference
    faster: int = 0  # the other way round
    calls: int = 0  # of clients
    errors: int = 0
    calls_before: int = 0
    errors_before: int = 0
    waited: int = 0  # seconds
    times: Mapping[int, int] = field(default_factory=dict)
    times_before: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(counts: Mapping[str, int]) -> Evidence:
        """Return the evidence of a hash of the store. Fields of other versions are left out."""
        plain = {name: counts.get(name, 0) for name in COUNTS}
        times: dict[str, dict[int, int]] = {"time": {}, "time_before": {}}
        for name, count in counts.items():
            kind, colon, bucket = name.partition(":")
            if colon and kind in times and bucket.isdigit():
                times[kind][int(bucket)] = count
        return Evidence(**plain, times=times["time"], times_before=times["time_before"])


COUNTS = (
    "audits", "right", "right_before", "won", "lost", "slower", "faster", "calls", "errors", "calls_before",
    "errors_before", "waited",
)  # fmt: skip


def bucket_of(seconds: float) -> int:
    """Return the bucket of a time."""
    return next((n for n in range(BUCKETS) if seconds <= bucket_end(n)), BUCKETS - 1)


def bucket_end(bucket: int) -> float:
    return float(2 ** (bucket / 4 - 10))


def percentile(times: Mapping[int, int], share: float) -> float | None:
    """Return the seconds within which this share of the times lies, rounded up to a bucket; None without times."""
    seen, total = 0, sum(times.values())
    for bucket in sorted(times):
        seen += times[bucket]
        if seen >= share * total:
            return bucket_end(bucket)
    return None


def judge(rollout: Rollout, evidence: Evidence, rule: RolloutRule) -> Verdict:
    """Judge the subject of a rollout by the evidence of its epoch."""
    if rollout.subject is None:
        return Verdict(Move.HOLD, "no version is in force")
    failing = _failing(evidence)
    if failing:
        return Verdict(Move.BACK, failing)
    in_force = rollout.candidate is None
    if evidence.audits < FIRST_LOOK * 2**rollout.looks:
        if not in_force and evidence.waited >= rule.give_up_after:
            why = f"no decision after {evidence.waited / 3600:.1f} hours, {evidence.audits} audits"
            return Verdict(Move.BACK, why)
        return Verdict(Move.HOLD, _progress(evidence, rollout.looks))
    error = (WATCH_ERROR if in_force else ERROR) / 2 ** (rollout.looks + 1)
    return _look(rollout, evidence, rule, error)


def _look(rollout: Rollout, evidence: Evidence, rule: RolloutRule, error: float) -> Verdict:
    z, n = NORMAL.inv_cdf(1.0 - error), evidence.audits
    has_reference, in_force = rollout.reference is not None, rollout.candidate is None
    agrees = f"it agrees with the large model in {evidence.right} of {n} audits"
    low, high = wilson_interval(evidence.right / n, n, z)
    worse = has_reference and chance_of_heads(evidence.won, evidence.won + evidence.lost) <= error
    pairs = f"against version {rollout.reference} {evidence.won} answers became right and {evidence.lost} wrong"
    if high < rule.agreement:
        before_high = wilson_interval(evidence.right_before / n, n, z)[1]
        if in_force and has_reference and before_high < rule.agreement:
            return Verdict(Move.OUT, f"{agrees}, version {rollout.reference} in {evidence.right_before}")
        return Verdict(Move.BACK, f"{agrees}, less than {rule.agreement:.0%}")
    if worse:
        return Verdict(Move.BACK, f"it is worse: {pairs}")
    if _is_slow(evidence, error):
        slower = f"{evidence.slower} of {n} answers took more than {rule.slower:g} times as long"
        return Verdict(Move.BACK, f"it is slower: {slower}, the other way round {evidence.faster}")
    if in_force:
        return Verdict(Move.WINDOW_OVER if n >= WINDOW else Move.LOOKED, agrees)
    equal = _difference_low(evidence, z) > -rule.margin if has_reference else low > rule.agreement
    if equal and not _may_be_slow(evidence):
        return Verdict(Move.UP, f"{agrees}; {pairs}" if has_reference else agrees)
    return Verdict(Move.LOOKED, f"{agrees}: not enough to decide")


def _failing(evidence: Evidence) -> str:
    """Return why the calls of clients speak against the subject, or "" if they do not. If the reference fails as often,
    they do not."""
    if evidence.errors < MIN_FAILURES:
        return ""
    z = NORMAL.inv_cdf(1.0 - FAILURE_ERROR)
    low, _ = wilson_interval(evidence.errors / evidence.calls, evidence.calls, z)
    before = evidence.errors_before / evidence.calls_before if evidence.calls_before else 0.0
    if low <= max(FAILURE_FLOOR, before):
        return ""
    return f"{evidence.errors} of its {evidence.calls} calls failed"


def is_slower(seconds: float, other_s: float, factor: float) -> bool:
    """Return whether an answer took longer than the other one to the same question, by the factor and by the floor."""
    return seconds > max(factor * other_s, other_s + SLOW_FLOOR_S)


def _is_slow(evidence: Evidence, error: float) -> bool:
    """Return whether the subject is slower in too many answers, and more often than the reference is. Equal versions
    are slower equally often, however busy the machine is."""
    many = evidence.slower > SLOW_SHARE * evidence.audits
    return many and chance_of_heads(evidence.faster, evidence.faster + evidence.slower) <= error


def _may_be_slow(evidence: Evidence) -> bool:
    return evidence.slower > SLOW_SHARE * evidence.audits and evidence.slower > evidence.faster


def _difference_low(evidence: Evidence, z: float) -> float:
    """Return the lower bound of the difference of two agreements over the same questions.

    The interval is that of Agresti and Min (Statistics in Medicine 24, 2005): Wald's, with half a question added to
    each of the four cells.
    """
    n, won, lost = evidence.audits + 2.0, evidence.won + 0.5, evidence.lost + 0.5
    difference = (won - lost) / n
    return difference - z * sqrt(max(0.0, (won + lost) / n - difference**2) / n)


def _progress(evidence: Evidence, looks: int) -> str:
    return f"{evidence.audits} of {FIRST_LOOK * 2**looks} audits until the next look"
