"""The page in a real browser: headless Chromium, driven by Playwright, from a file, as a person opens it."""

from __future__ import annotations

import re

import advices
import browsing
import pytest

from perdure.report import html

pytestmark = pytest.mark.chromium


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    html.write(advices.advice(advices.fleet(60)), made / "usual.html")
    html.write(advices.hostile(), made / "hostile.html", title=advices.HOSTILE_NAMES[3])
    return made


@pytest.fixture(scope="module")
def browser():
    with browsing.launched() as browser:
        yield browser


class Opened(browsing.Opened):
    def names(self):
        return self.page.locator("#table tbody tr:visible .name").all_inner_texts()

    def column(self, number):
        return self.page.evaluate(
            "n => [...document.querySelectorAll('#table tbody tr:not([hidden])')].map(row => row.cells[n].dataset.v)", number
        )


@pytest.fixture
def opened(browser, folder):
    made = []

    def open_(name="usual.html", **context):
        made.append(Opened(browser, folder / name, **context))
        return made[-1]

    yield open_
    for one in made:
        one.context.close()


@pytest.mark.parametrize("name", ["usual.html", "hostile.html"])
def test_it_opens_without_a_complaint_and_asks_for_nothing(opened, folder, name):
    page = opened(name)
    page.page.mouse.wheel(0, 20_000)
    assert page.complaints == []
    assert page.requests == [(folder / name).as_uri()]


def test_no_hostile_name_runs(opened):
    page = opened("hostile.html")
    page.page.locator("#table thead button").first.click()
    page.page.locator("details.w summary").first.click()
    assert page.page.evaluate("window.canary") is None
    assert page.page.locator("script").count() == 1
    assert "<script>window.canary=1</script>" in page.names()
    # The policy stops what escaping might miss.
    page.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.canary=1\">')")
    page.wait_for_complaint("Content Security Policy")
    assert page.page.evaluate("window.canary") is None


def test_sorting_by_click_and_by_keyboard(opened):
    page = opened()
    saved = page.page.get_by_role("button", name="saved")
    saved.click()
    header = page.page.locator("th[aria-sort]")
    assert header.count() == 1
    assert header.get_attribute("aria-sort") == "descending"
    values = [float(one) for one in page.column(10) if one]
    assert values == sorted(values, reverse=True)
    assert len(values) > 40
    assert page.column(10)[0] != ""

    saved.focus()
    page.page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    values = [float(one) for one in page.column(10) if one]
    assert values == sorted(values)

    page.page.get_by_role("button", name="workload").focus()
    page.page.keyboard.press("Space")
    assert page.names() == sorted(page.names())
    details = page.page.locator("details.w:visible summary .name").all_inner_texts()
    assert details == page.names(), "the details follow the table"


def test_empty_figures_stay_last(opened):
    page = opened()
    page.page.get_by_role("button", name="Show all 60").click()
    for _ in range(2):
        page.page.get_by_role("button", name="saved").click()
        empty = [one == "" for one in page.column(10)]
        assert empty == sorted(empty)
        assert any(empty)


def test_filtering_by_words_and_by_verdict(opened):
    page = opened()
    assert page.page.locator("#found").inner_text() == "50 shown, 60 workloads"
    find = page.page.get_by_role("searchbox")
    find.press_sequentially("rlhf ESI")
    assert page.names()
    assert all("rlhf" in name for name in page.names())
    assert re.fullmatch(r"\d found of 60 workloads", page.page.locator("#found").inner_text())
    assert page.page.locator("details.w:visible").count() == len(page.names())

    find.fill("")
    for kind in ("RESUME", "RETRY", "EITHER", "NEITHER"):
        page.page.get_by_role("checkbox", name=kind, exact=True).press("Space")
    kinds = set(page.page.locator("#table tbody tr:visible .v").all_inner_texts())
    assert kinds == {"▲ RESUME-REQUIRED"}

    find.fill("no such workload")
    assert page.names() == []
    assert page.page.locator("#found").inner_text() == "0 found of 60 workloads"


def test_long_lists_open_on_demand_and_links_reach_what_is_folded(opened):
    page = opened()
    assert len(page.names()) == 50
    page.page.evaluate("location.hash = '#w55'")
    page.page.locator("#w55").wait_for(state="visible")
    page.page.get_by_role("button", name="Show all 60").click()
    assert len(page.names()) == 60
    page.page.locator("#table tbody tr:visible a").first.click()
    page.page.locator("#w1").wait_for(state="visible")
    assert "points to" in page.page.locator("#w1").inner_text()


@pytest.mark.parametrize("name", ["usual.html", "hostile.html"])
def test_a_telephone_never_scrolls_sideways(opened, name):
    page = opened(name, viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    page.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert page.page.evaluate("document.documentElement.scrollWidth") == 360
    first = page.page.locator("#table tbody tr").first
    assert first.bounding_box()["width"] <= 360
    assert page.page.locator("figure .narrow svg").first.is_visible()
    assert not page.page.locator("figure .wide svg").first.is_visible()
    text = first.evaluate("row => [...row.cells].map(cell => getComputedStyle(cell, '::before').content).join(' ')")
    assert '"saved"' in text, "a figure keeps its name when the columns become a card"


def test_without_script_the_page_is_complete(opened):
    page = opened(java_script_enabled=False)
    assert len(page.names()) == 60
    assert not page.page.locator("#filter").is_visible()
    assert page.page.locator("#table thead").inner_text().split("\t")[:2] == ["verdict", "workload"]


def test_dark_and_light_differ_and_both_can_be_read(opened):
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        backgrounds.add(page.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert min(page.contrasts(".v, .note, a, figure text")) >= 4.5, "WCAG 2 AA"
    assert len(backgrounds) == 2


def test_print_unfolds_the_details_and_repeats_the_heads(opened, tmp_path):
    page = opened()
    page.page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    content = (tmp_path / "report.pdf").read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert pages > 10, "fifty details do not fit on fewer sheets"
    assert re.search(rb"/MediaBox\s*\[\s*0 0 59[45][.\d]* 84[12][.\d]*\s*\]", content), "A4"

    page.page.emulate_media(media="print")
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.page.locator("#w50").is_visible()
    assert page.page.locator("#table thead").evaluate("head => getComputedStyle(head).display") == "table-header-group"
    assert page.page.locator("#table thead button:visible").count() == 0, "Chromium does not repeat a head that holds a control"
    assert not page.page.get_by_role("searchbox").is_visible()
    page.page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.page.emulate_media(media="screen")
    assert not page.page.locator("#w50").is_visible()
