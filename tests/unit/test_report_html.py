"""The page as a document: complete, self-contained, escaped, the same every time. What a browser does with it: tests/e2e."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import sys

import advices
import msgspec
import pytest
from documents import Document

from perdure import errors
from perdure.model import advice as model
from perdure.report import charts, html, page


@pytest.fixture(scope="module")
def usual():
    return html.render(advices.advice())


@pytest.fixture(scope="module")
def hostile():
    return html.render(advices.hostile(), title=advices.HOSTILE_NAMES[3])


@pytest.fixture(scope="module")
def gaps():
    return html.render(advices.gaps())


@pytest.fixture(scope="module")
def empty():
    return html.render(advices.empty())


@pytest.mark.parametrize("name", ["usual", "hostile", "gaps", "empty"])
def test_every_element_is_closed_and_every_id_is_unique(name, request):
    document = Document(request.getfixturevalue(name))
    assert document.stack == []
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in document.elements:
        for name in ("aria-labelledby", "href"):
            for target in (attributes.get(name) or "").split():
                assert target.removeprefix("#") in ids, f"{name}={target} points at nothing"


def test_nothing_is_loaded_from_elsewhere(usual, hostile):
    for content in (usual, hostile):
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\((?!#)", content.replace("http-equiv", ""))
        for tag, attributes in Document(content).elements:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base", "image", "use", "foreignObject"}
            assert "src" not in attributes
            assert all(attributes.get(name, "#").startswith("#") for name in ("href", "xlink:href"))


def test_the_policy_allows_only_our_own_style_and_script(usual):
    policy = next(attributes["content"] for tag, attributes in Document(usual).elements if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", usual, re.DOTALL)
        assert len(contents) == 1
        digest = base64.b64encode(hashlib.sha256(contents[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_no_inline_handler_or_style(usual, hostile):
    for content in (usual, hostile):
        for tag, attributes in Document(content).elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], tag


def test_hostile_text_is_text(hostile):
    document = Document(hostile)
    assert sum(tag == "script" for tag, _ in document.elements) == 1
    assert not [tag for tag, _ in document.elements if tag == "img"]
    for name in advices.HOSTILE_NAMES[:5]:
        assert name in document.text
    assert "49" not in re.findall(r"\{\{.*?\}\}", document.text), "not a template"
    # Nothing may move a cursor, reverse the reading order or hide.
    assert not [char for char in document.text if not char.isprintable() and char not in "\n\t "]
    assert "\\u202egpj.exe" in document.text
    assert "\\x1b[31m" in document.text


def test_hostile_words_in_charts_are_text():
    advice = advices.hostile()
    chart = charts.exposure_by_outcome(advice)
    for svg in (chart.wide, chart.narrow):
        assert "<script" not in svg
        assert "&lt;script&gt;" in svg


def test_every_workload_has_a_row_and_a_detail(usual):
    assert usual.count("<tr data-verdict=") == usual.count('<details class="w">') == 40
    text = Document(usual).text
    for words in ("interruption", "destroyed work", "rebuilding", "schedule", "6d16h", "34 × 42m21s", "work 59m47s", "1,024 GPUs"):
        assert words in text


def test_totals_and_share_of_the_whole(usual):
    text = re.sub(r"\s+", " ", Document(usual).text)
    assert "GPU-hours allocated2,384,180" in text
    assert "210,000 – 466,400 8.8 % to 19.6 % of all" in text
    assert "73,142 3.1 % of all, by 14 of 37 workloads" in text
    assert "Beside them, work without GPUs: 41,000 node-hours in 3 workloads" in text
    assert "5 of those to resume have no finite saving" in text


def test_methods_limits_assumptions_and_notes(usual):
    text = Document(usual).text
    for words in (
        "Garwood 1936",
        "Daly (2006, equation 37)",
        "W* = ΔR + √(ΔR² + 4CM)",
        "What this history cannot tell",
        "18 workloads look as if they continue by themselves",
        "That a failure rate is universal",
        "That restart counts are failure counts",
        "checkpoint_cost_minutes",
        "2m (default)",
        "Failures are bunched",
        "Published elsewhere, for comparison only",
        "Llama 3 training",
    ):
        assert words in text


def test_unknown_and_infinite_figures_read_as_words(gaps):
    text = Document(gaps).text
    assert not re.search(r"\b(nan|inf|None|Infinity)\b", text)
    assert "none seen" in text
    assert "never finishes" in text
    assert 'data-v="nan"' not in gaps


def test_nothing_ran(empty):
    text = Document(empty).text
    assert "No workload to advise on" in text
    assert "Methods" in text


def test_the_same_advice_gives_the_same_bytes(usual):
    assert html.render(advices.advice()) == usual


def test_a_large_history_is_cut_and_says_so():
    content = html.render(advices.advice(advices.fleet(700)))
    assert content.count("<tr data-verdict=") == content.count('<details class="w">') == page.SHOWN
    text = re.sub(r"\s+", " ", Document(content).text)
    assert "The 500 worst of 700 workloads are on this page; the totals count all of them. The other 200 are in the CSV" in text
    assert "all 637 workloads" in text
    assert len(content) < 4_000_000


def test_charts_have_a_name_a_description_and_two_widths(usual):
    pictures = [attributes for tag, attributes in Document(usual).elements if tag == "svg" and attributes.get("role") == "img"]
    assert len(pictures) == 10, "rates, lost (GPU and node), outcomes, break-even: each for a desk and a telephone"
    assert all(attributes["aria-labelledby"] for attributes in pictures)
    assert {attributes["width"] for attributes in pictures} == {"540", "316"}
    assert "For infrastructure, 1: every 625d; 8: every 69d11h" in usual


def test_rates_without_events_have_no_chart():
    rate = advices.gaps().rates[0]
    assert charts.rates_by_size([rate], "gpu", ()) is None
    assert charts.rates_by_size([], "gpu", ()) is None


def test_bunches_stand_beside_both_figures_that_may_show_them():
    bunched = advices.advice()
    by_counts = model.Dispersion(0.9, 2.1, 0.003, over_dispersed=True)
    rate = msgspec.structs.replace(bunched.rates[0], dispersion=by_counts)
    text = Document(html.render(msgspec.structs.replace(bunched, rates=(rate,)))).text
    assert "Times between events vary by CV 0.90 (1 for a Poisson process)." in text
    assert "Daily counts vary 2.10 times as much as those of a Poisson process. The events come in bunches." in text


def test_a_fit_over_one_size_is_drawn():
    rate = advices.cause_rates()
    one = msgspec.structs.replace(
        rate,
        bins=rate.bins[2:3],
        events=48,
        fit=msgspec.structs.replace(rate.fit, observed_low=8.0, observed_high=8.0, exponent_interval=None),
    )
    assert "<path" in charts.rates_by_size([one], "gpu", ()).wide


def test_the_file_is_private_and_a_failed_write_leaves_nothing(tmp_path):
    html.write(advices.empty(), tmp_path / "report.html", title="Fleet")
    assert stat.S_IMODE(os.stat(tmp_path / "report.html").st_mode) == 0o600
    assert "<h1>Fleet</h1>" in (tmp_path / "report.html").read_text("utf-8")
    with pytest.raises(errors.OutputError):
        html.write(advices.empty(), tmp_path / "missing" / "report.html")
    assert os.listdir(tmp_path) == ["report.html"]


@pytest.mark.parametrize("library", ["jinja2", "altair", "vl_convert"])
def test_a_missing_library_is_named_with_what_to_install(monkeypatch, tmp_path, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.MissingExtra, match=library) as caught:
        html.write(advices.advice([advices.workload()]), tmp_path / "report.html")
    assert caught.value.hint == "pip install 'perdure[advise]'"
    assert os.listdir(tmp_path) == []
