"""The reasons of targets that are not met: each is asked for, and the others are not shown."""

import pytest

from bench import reasons, verdicts


def verdict(target: reasons.Target, *, met: bool | None) -> verdicts.Verdict:
    return verdicts.Verdict(target, f"what {target}", "≥ 2 ×", "1 ×", met)


def test_only_a_target_that_is_not_met_has_its_reason_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: dict[reasons.Target, str] = {("a", "b"): "Slow.", "c": "Late.", "d": "Slow.", "e": "No."}
    monkeypatch.setattr(reasons, "REASONS", texts)
    unmet = [verdict(target, met=False) for target in texts if target != "e"]
    shown = verdicts.explanations([*unmet, verdict("e", met=True), verdict("f", met=None)])
    assert shown.splitlines()[1:] == [
        "",
        "- **what ('a', 'b'): ≥ 2 ×; what d: ≥ 2 ×.** Slow.",
        "- **what c: ≥ 2 ×.** Late.",
    ]
    assert verdicts.explanations([verdict("e", met=True)]) == "No target was missed."


def test_targets_without_a_reason_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "REASONS", {"a": "Slow."})
    with pytest.raises(verdicts.Unexplained) as refused:
        verdicts.explanations([verdict(target, met=False) for target in ("a", "b", ("c", "d"))])
    assert str(refused.value).splitlines() == [
        'say in bench/reasons.py why "what b: ≥ 2 ×" was not reached, by `make profile`; its key is'
        " 'b'",
        "say in bench/reasons.py why \"what ('c', 'd'): ≥ 2 ×\" was not reached, by `make profile`;"
        " its key is ('c', 'd')",
    ]
