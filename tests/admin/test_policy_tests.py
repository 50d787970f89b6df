"""Policies carry their own expectations; one that does not hold is a fault at its line, and keeps the policy out."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.admin.policy_manager import backend_adapters, check_policy
from gateway.admin.policy_tests import MAX_S, failed_expectations
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import PolicySource
from tests.config.documents import config

POLICY = """\
version: 1
routes:
  - name: support
    match: {path: /v1/chat/completions, tenant: acme, headers: {x-app: support}}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}, share: user}
    route: {light: light, large: large, escalate_above: 0.5, latency_budget: 1ms}
  - name: embeddings
    match: {path: /v1/embeddings}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
  - {name: pictures, match: {model: gpt-image*}, route: {backend: main}}
  - name: default
    match: {}
    route: {backend: main}
tests:
"""


def sentences(*tests: str) -> list[str]:
    document = POLICY + "".join(f"  - {test}\n" for test in tests)
    try:
        policy = check_policy([PolicySource("p.yaml", document.encode())], config())
    except ConfigInvalid as invalid:
        return list(map(str, invalid.faults))
    assert len(policy.expectations) == len(tests)
    return []


ACME = "tenant: acme, headers: {x-app: support}"


@pytest.mark.parametrize(
    "test",
    [
        f"{{name: a, request: {{{ACME}}}, expect: {{route: support, cache: semantic, share: user}}}}",
        f"{{name: a, request: {{{ACME}, complexity: 0.4}}, expect: {{tier: light, backend: light}}}}",
        f"{{name: a, request: {{{ACME}, complexity: 0.6}}, expect: {{tier: large, backend: large}}}}",
        f"{{name: a, request: {{{ACME}, question: What is a scope}}, expect: {{tier: light}}}}",
        "{name: a, request: {}, expect: {route: default, cache: off, backend: main}}",
        "{name: a, request: {tenant: acme}, expect: {route: default}}",
        "{name: a, request: {headers: {X-App: support}, tenant: acme}, expect: {route: support}}",
        "{name: a, request: {tenant: acme, headers: {x-app: support, cache-control: no-store}},"
        " expect: {cache: no-store}}",
        "{name: a, request: {path: /v1/embeddings, body: {model: m, input: x}},"
        " expect: {route: embeddings, cache: exact}}",
        "{name: a, request: {path: /v1/audio/speech}, expect: {route: default, cache: pass-through}}",
        "{name: a, request: {path: /v1/audio/speech, body: {model: gpt-image-1}}, expect: {route: pictures}}",
        "{name: a, request: {path: /v1/%65mbeddings, body: {model: m, input: x}}, expect: {route: embeddings}}",
        "{name: a, request: {path: /v1/messages, question: hello}, expect: {route: default}}",
    ],
)
def test_what_holds_is_no_fault(test: str) -> None:
    assert sentences(test) == []


def test_what_does_not_hold_is_a_fault_at_its_line() -> None:
    found = sentences(
        f"{{name: first, request: {{{ACME}, complexity: 0.7}}, expect: {{tier: light}}}}",
        "{name: second, request: {}, expect: {route: support, cache: semantic}}",
        "{name: third, request: {}, expect: {tier: light}}",
    )
    assert found == [
        "p.yaml:16: tests[0].expect.tier: 'first': expected light, got large (route 'support', complexity 0.70)",
        "p.yaml:17: tests[1].expect.cache: 'second': expected semantic, got off (route 'default')",
        "p.yaml:17: tests[1].expect.route: 'second': expected support, got default (by the rules' match)",
        "p.yaml:18: tests[2].expect.tier: 'third': expected light, got none: there is one backend (route 'default')",
    ]


def test_what_is_no_request_is_a_fault() -> None:
    (found,) = sentences("{name: a, request: {body: {model: m}}, expect: {route: default}}")
    assert found.startswith("p.yaml:16: tests[0].request: 'a': is no request: ")


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (
            "{name: a, request: {}, expect: {}}",
            "tests[0].expect: an expectation is required, expected one or more of: route",
        ),
        ("{name: a, request: {}, expect: {cache: semantc}}", "did you mean 'semantic'?"),
        ("{name: a, request: {path: /x, question: y}, expect: {route: z}}", "only, expected body for this path"),
        ("{name: a, request: {body: {}, question: y}, expect: {route: z}}", "cannot stand next to body"),
        ("{name: a, expect: {route: z}}", "'request' is required, e.g. request: {question: \"What is a scope?\"}"),
    ],
)
def test_a_faulty_test_gets_its_sentence(test: str, said: str) -> None:
    (found,) = sentences(test)
    assert said in found


def test_tests_are_bounded_in_number_and_time() -> None:
    one = "{name: a, request: {}, expect: {route: default}}"
    assert sentences(*[one] * 201) == ["p.yaml:15: tests: 201 tests in a file, expected at most 200"]
    policy = policy_from_text(POLICY + f"  - {one}\n" * 20, "p.yaml", config())
    ticks = count(step=MAX_S / 3)
    (fault,) = failed_expectations(policy, backend_adapters(config()), lambda: next(ticks))
    assert "take more than 5 s together" in str(fault)


def test_the_outcome_is_the_same_again_and_again() -> None:
    test = f"  - {{name: a, request: {{{ACME}, question: Prove it step by step.}}, expect: {{tier: light}}}}\n"
    shares = POLICY.replace("escalate_above: 0.5", "large_share: 30%") + test
    policy = policy_from_text(shares, "p.yaml", config())
    assert len({failed_expectations(policy, {}) for _ in range(5)}) == 1


def test_check_runs_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "config.yaml").write_text(
        "version: 1\nbackends:\n  light: &a {adapter: openai, url: https://host/v1}\n  large: *a\n  main: *a\n"
    )
    file = tmp_path / "policies" / "default.yaml"
    file.write_text(POLICY + "  - {name: a, request: {}, expect: {route: support}}\n")
    assert main(["check", "--config", str(tmp_path / "config.yaml")]) == 1
    assert "tests[0].expect.route: 'a': expected support, got default" in capsys.readouterr().out
    file.write_text(POLICY + "  - {name: a, request: {}, expect: {route: default}}\n")
    assert main(["check", "--config", str(tmp_path / "config.yaml")]) == 0
