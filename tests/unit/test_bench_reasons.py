"""The reasons of targets that are not met: each is asked for, and the others are not shown."""

import pytest

from bench import reasons, verdicts

COMMIT = "abc1234"


@pytest.fixture(autouse=True)
def _read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "READ_AT", COMMIT)


def verdict(target: reasons.Target, *, met: bool | None) -> verdicts.Verdict:
    return verdicts.Verdict(target, f"what {target}", "≥ 2 ×", "1 ×", met)


def test_only_a_target_that_is_not_met_has_its_reason_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: dict[reasons.Target, str] = {("a", "b"): "Slow.", "c": "Late.", "d": "Slow.", "e": "No."}
    monkeypatch.setattr(reasons, "REASONS", texts)
    unmet = [verdict(target, met=False) for target in texts if target != "e"]
    shown = verdicts.explanations([*unmet, verdict("e", met=True), verdict("f", met=None)], COMMIT)
    assert shown.splitlines()[1:] == [
        "",
        "- **what ('a', 'b'): ≥ 2 ×; what d: ≥ 2 ×.** Slow.",
        "- **what c: ≥ 2 ×.** Late.",
    ]


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([], "No target was missed."),
        (["b"], "No target was missed, as far as is known: of 1 target it is not."),
        (["b", "c"], "No target was missed, as far as is known: of 2 targets it is not."),
    ],
)
def test_a_target_that_is_not_known_was_not_met(others: list[str], told: str) -> None:
    """Nor was it missed. Without a reason, it does not matter when they were read."""
    found = [verdict("a", met=True), *(verdict(target, met=None) for target in others)]
    assert verdicts.explanations(found, "of another day") == told


def test_reasons_read_at_another_commit_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their figures may no longer be true; of targets that are met, nobody reads them."""
    texts: dict[reasons.Target, str] = {("a", "b"): "Slow.", "c": "Late.", "d": "No."}
    monkeypatch.setattr(reasons, "REASONS", texts)
    found = [verdict(target, met=target == "d") for target in texts]
    with pytest.raises(verdicts.Unexplained) as refused:
        verdicts.explanations(found, "def5678")
    assert str(refused.value).splitlines() == [
        "the reasons in bench/reasons.py were read at abc1234, and the run is of def5678: read"
        " these again, correct their figures by `make profile` at def5678, and then set READ_AT to"
        ' "def5678"',
        "  ('a', 'b')",
        "  'c'",
    ]


def test_targets_without_a_reason_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "REASONS", {"a": "Slow."})
    with pytest.raises(verdicts.Unexplained) as refused:
        verdicts.explanations(
            [verdict(target, met=False) for target in ("a", "b", ("c", "d"))], COMMIT
        )
    assert str(refused.value).splitlines() == [
        'say in bench/reasons.py why "what b: ≥ 2 ×" was not reached: `make profile` shows what a'
        " record costs; its key is 'b'",
        "say in bench/reasons.py why \"what ('c', 'd'): ≥ 2 ×\" was not reached: `make profile`"
        " shows what a record costs; its key is ('c', 'd')",
    ]
