"""Warnings of checkpoints: each is said once in a life, however often it is found, and answers stay short."""

from __future__ import annotations

from perdure.model.finding import Finding, Severity
from perdure.supervisor import cautions, wire


def finding(
    code: str, subject: str, *, path: str | None = None, severity: Severity = Severity.WARNING, remedy: str | None = None
) -> Finding:
    return Finding(code=code, severity=severity, subject=subject, message="matters", path=path, remedy=remedy)


def test_only_warnings_count_and_one_for_each_thing():
    found = cautions.of(
        [
            finding("file-a", "python3 (7) fd 3", path="/data/x"),
            finding("file-a", "python3 (8) fd 3", path="/data/x"),
            finding("file-a", "python3 (7) fd 4", path="/data/y"),
            finding("file-remote", "/home", path="/home/x"),
            finding("file-remote", "/home", path="/home/y"),
            finding("file-b", "/data/x", severity=Severity.INFO),
        ]
    )
    assert [(each.code, each.path) for each in found] == [("file-a", "/data/x"), ("file-a", "/data/y"), ("file-remote", "/home/x")]


def test_a_thing_is_said_once_also_where_another_process_has_it_now():
    said = cautions.Cautions("train")
    first = finding("file-a", "python3 (7) fd 3", path="/data/x", remedy="close it")
    assert said.say(said.new([first])) == ("train: python3 (7) fd 3: matters (close it)",)
    assert said.new([first, finding("file-a", "python3 (9) fd 3", path="/data/x")]) == ()
    assert said.say(said.new([finding("file-b", "python3 (9) fd 3", path="/data/x")])) == ("train: python3 (9) fd 3: matters",)


def test_a_thousand_of_one_kind_are_counted():
    lines = cautions.Cautions("train").say([finding("file-a", f"python3 ({number}) fd 3") for number in range(1000)])
    assert len(lines) == 6
    assert lines[-1] == "train: and 995 more of file-a: see perdure check train"


def test_an_answer_holds_as_many_as_fit():
    many = [finding("file-a", "x" * 1000, path=f"/{number}") for number in range(100)]
    fitting = cautions.fitting(many)
    assert list(fitting) == many[: len(fitting)]
    assert 40 < len(fitting) < 50
    assert len(wire.encode(fitting)) < 50_000
    assert cautions.fitting(many[:3]) == tuple(many[:3])
