"""The terminal table: fits a terminal, is whole down a pipe, shows untrusted text without acting on it."""

from __future__ import annotations

import io
import re

import advices
import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from perdure.model import advice as model
from perdure.report import figures, terminal, totals


def on_terminal(advice, width, *, top=20, colour=None, **options):
    output = io.StringIO()
    console = Console(
        file=output, width=width, force_terminal=True, color_system=colour, highlight=False, emoji=False, markup=False, **options
    )
    terminal.render(advice, console, top=top)
    return output.getvalue()


def down_pipe(advice, *, top=20):
    output = io.StringIO()
    terminal.render(advice, Console(file=output, width=200, highlight=False, emoji=False, markup=False, soft_wrap=True), top=top)
    return output.getvalue()


def exposure_text(exposure, width=80, **options):
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None, highlight=False, emoji=False, markup=False)
    terminal.render_exposure(exposure, console, **options)
    return output.getvalue()


@pytest.mark.parametrize("width", [80, 100, 132, 200])
@pytest.mark.parametrize("make", [advices.advice, advices.hostile, advices.gaps, advices.empty])
def test_no_line_is_wider_than_the_terminal(make, width):
    for line in on_terminal(make(), width).splitlines():
        assert cell_len(line) <= width, line


def test_eighty_columns_keep_what_decides():
    header, first = on_terminal(advices.advice(), 80).splitlines()[:2]
    assert header.split() == ["workload", "size", "lost", "retry", "resume", "verdict", "saved"]
    assert re.split(r"\s{2,}", first) == ["pretrain-#b", "1,024 GPUs", "60,000", "47,000", "5,000", "RESUME", "42,000"]


def test_a_wide_terminal_shows_user_account_interval_and_share():
    header, first = on_terminal(advices.advice(), 200).splitlines()[:2]
    for word in ("user", "account", "jobs", "interrupted", "MTTF", "interval", "of all", "retry time", "resume time"):
        assert word in header
    for cell in ("amara", "nlp", "6h12m*", "4h20m–9h18m", "2.5 %", "6d16h", "1d3h"):
        assert cell in first


def test_a_pipe_gets_whole_names_one_line_a_row():
    text = down_pipe(advices.hostile())
    rows = [line for line in text.splitlines() if "RESUME" in line]
    assert len(rows) == len(advices.HOSTILE_NAMES)
    assert "x" * 195 in text
    assert "…" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_untrusted_text_cannot_move_the_cursor_colour_or_reverse():
    for text in (down_pipe(advices.hostile()), on_terminal(advices.hostile(), 120), exposure_text(advices.hostile().exposure, 120)):
        assert all(char.isprintable() or char == "\n" for char in text)
    assert "\\x1b[31mred\\x1b[0m\\x07" in down_pipe(advices.hostile())
    assert "[bold]markup[/bold] :smile:" in down_pipe(advices.hostile()), "not taken for markup"


def test_colour_only_repeats_words():
    plain = on_terminal(advices.advice(), 100)
    coloured = on_terminal(advices.advice(), 100, colour="truecolor")
    assert "\x1b[" in coloured
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_no_color_is_obeyed(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = on_terminal(advices.advice(), 100, colour="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)


def test_the_rest_is_counted_summed_and_announced():
    advice = advices.advice()
    text = down_pipe(advice, top=8)
    assert "and 32 more rows; --csv and --parquet hold all of them." in text
    lines = {line[:11].strip(): line for line in text.splitlines() if line.startswith(("… ", "all "))}
    assert set(lines) == {"… 29 more", "… 3 more", "all 37", "all 3"}
    rest, everything = (totals.by_unit(advice, rows)[0] for rows in (advice.workloads[8:], advice.workloads))
    assert figures.amount(rest.destroyed_hours.high) in lines["… 29 more"]
    assert figures.amount(everything.saved_hours) in lines["all 37"]
    assert "37 nodes" not in text, "GPU-hours and node-hours are not added"


def test_top_zero_shows_all():
    text = down_pipe(advices.advice(), top=0)
    assert "more rows" not in text
    assert (
        sum(
            line.startswith(("pretrain", "finetune", "eval", "diffusion", "rlhf", "protein", "climate", "ablation", "cfd"))
            for line in text.splitlines()
        )
        == 40
    )


def test_what_has_no_figure_is_said():
    text = down_pipe(advices.advice())
    assert "5 of those have no finite saving" in text
    row = next(line for line in text.splitlines() if "RESUME-REQUIRED" in line)
    assert " never " in row
    assert row.endswith("–")


def test_unknown_and_infinite_figures_read_as_words():
    text = down_pipe(advices.gaps())
    assert not re.search(r"\b(nan|inf|None)\b", text)
    assert "none seen*" in text
    assert "> 34d17h" in text, "an interval open above"


def test_rates_replay_assumptions_notes_and_limits_follow():
    text = down_pipe(advices.advice())
    positions = [
        text.index(part)
        for part in (
            "Mean time between interruptions of a job, by GPUs",
            "infrastructure: rate ∝ size^1.04 (90%: 0.93 to 1.15), observed at 1–1,400 GPUs; in bunches, intervals by bootstrap.",
            "This history, replayed",
            "- checkpoint_cost_minutes 2m, restore_cost_minutes 10m",
            "Failures are bunched",
            "Whether a job that hit its limit",
        )
    ]
    assert positions == sorted(positions)
    assert "gpu_hour_price" not in text, "given by a policy, not assumed"
    # No event in 12,000 hours of 2–7 GPUs: 3/12,000 per hour at most.
    assert re.search(r"2–7 .* > 167d", text)


def test_nothing_ran():
    text = down_pipe(advices.empty())
    assert text.startswith("No workload to advise on")
    assert "0 jobs" in exposure_text(advices.empty().exposure)


def test_exposure_by_outcome_and_size_adds_up():
    exposure = advices.exposure()
    text = exposure_text(exposure, candidates=advices.advice().workloads[:3])
    success = next(line for line in text.splitlines() if line.startswith("success"))
    assert re.split(r"\s{2,}", success) == ["success", "all", "27,220", "67.7 %", "347,000", "1,818,000", "76.3 %"]
    assert re.search(r"^ +≥ 1,024 GPUs +120 ", text, re.MULTILINE)
    assert f"{exposure.attempts:,}" in text
    assert "Interruptions destroyed 210,000 to 466,400 GPU-hours." in text
    assert "Infrastructure failures touched 0.27 % of jobs, and 15.7 % of GPU-hours." in text
    assert "11.0 % of jobs repeat an earlier one" in text
    assert re.search(r"^pretrain-#b +amara +1,024 GPUs +12 +19 +24,000 to 60,000$", text, re.MULTILINE)
    assert text.index("Top candidates") < text.index("What this history cannot tell")


def test_lost_by_cause_conserves_every_hour():
    advice = advices.advice()
    for unit in ("gpu", "node"):
        lost = totals.lost_by_cause(advice, unit)
        expected = sum(sum(row.evidence.lost_by_cause.values()) for row in advice.workloads if row.evidence.key.size.unit == unit)
        assert sum(one.hours for one in lost) == pytest.approx(expected)
    assert [one.cause for one in lost] == ["infrastructure", "preemption", "walltime", "user_failure"]


def test_outcome_shares_sum_to_one():
    shares = totals.by_outcome(advices.exposure())
    assert sum(one.share_attempts for one in shares) == pytest.approx(1)
    assert sum(one.share_hours for one in shares) == pytest.approx(1)


def test_a_history_without_gpus_is_shared_by_node_hours():
    rows = tuple(msgspec.structs.replace(row, unit="node", gpu_hours=0.0) for row in advices.exposure().rows)
    shares = totals.by_outcome(advices.exposure(rows=rows, gpu_hours=0.0))
    assert sum(one.share_hours for one in shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (0.0, "0"),
        (0.004, "0.004"),
        (0.5, "0.50"),
        (9.996, "10.0"),
        (99.96, "100"),
        (12.34, "12.3"),
        (-1696.2, "−1,696"),
        (1e7, "10,000,000"),
    ],
)
def test_amount(value, text):
    assert figures.amount(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0, "0 %"), (0.00001, "< 0.01 %"), (0.0027, "0.27 %"), (0.157, "15.7 %"), (1.0, "100.0 %"), (-0.02, "−2.0 %")],
)
def test_percent(share, text):
    assert figures.percent(share) == text


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(None, "–"), (float("inf"), "never"), (42.35, "42m21s"), (474, "7h54m"), (68_688, "47d17h"), (525_600, "365d"), (-90, "−1h30m")],
)
def test_duration(minutes, text):
    assert figures.duration(minutes) == text


@pytest.mark.parametrize(
    ("low", "high", "text"), [(1, 1, "1"), (2, 7, "2–7"), (1024, None, "≥ 1,024"), (1024, float("inf"), "≥ 1,024"), (0.5, 0.5, "0.5")]
)
def test_size_range(low, high, text):
    assert figures.size_range(low, high) == text


def test_size_names_its_unit():
    assert figures.size(model.Size(1024)) == "1,024 GPUs"
    assert figures.size(model.Size(1, "node")) == "1 node"
    assert figures.size(model.Size(0.5)) == "0.5 GPUs"
