"""The evaluation's page in a real browser: headless Chromium, driven by Playwright, from a file, as a person opens it."""

from __future__ import annotations

import re

import browsing
import pytest
import reported

from perdure.evaluation import page

pytestmark = pytest.mark.chromium

NAMES = ("clean", "rigged", "hostile")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("report")
    for name in NAMES:
        page.write(reported.read(getattr(reported, name)(made / name)), made / f"{name}.html")
    return made


@pytest.fixture(scope="module")
def browser():
    with browsing.launched() as browser:
        yield browser


class Opened(browsing.Opened):
    def unfold(self):
        self.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")


@pytest.fixture
def opened(browser, folder):
    made = []

    def open_(name="clean", **context):
        made.append(Opened(browser, folder / f"{name}.html", **context))
        return made[-1]

    yield open_
    for one in made:
        one.context.close()


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_without_a_complaint_and_asks_for_nothing(opened, folder, name):
    there = opened(name)
    there.unfold()
    there.page.mouse.wheel(0, 20_000)
    assert there.complaints == []
    assert there.requests == [(folder / f"{name}.html").as_uri()]


def test_no_hostile_text_runs(opened):
    there = opened("hostile")
    assert there.page.evaluate("window.canary") is None
    assert there.page.locator("script").count() == 0
    # The policy stops what escaping might miss.
    there.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.canary=1\">')")
    there.wait_for_complaint("Content Security Policy")
    assert there.page.evaluate("window.canary") is None


@pytest.mark.parametrize("name", NAMES)
def test_a_telephone_never_scrolls_sideways(opened, name):
    there = opened(name, viewport={"width": 360, "height": 780}, has_touch=True, is_mobile=True)
    there.unfold()
    assert there.page.evaluate("document.documentElement.scrollWidth") == 360
    beyond = there.page.evaluate("""() => [...document.querySelectorAll('main *')].filter(one =>
        !one.closest('.scroll') && !one.classList.contains('unseen') && one.getBoundingClientRect().right > 360.5
    ).map(one => one.outerHTML.slice(0, 90))""")
    assert beyond == []
    if name == "clean":
        assert there.page.locator("figure .narrow svg").first.is_visible()
        assert not there.page.locator("figure .wide svg").first.is_visible()
        assert there.page.locator("#verdict").bounding_box()["y"] < 200, "what it says is the first thing on the screen"


def test_a_flag_is_seen_first(opened):
    there = opened("rigged")
    banner = there.page.locator("#verdict")
    assert banner.inner_text().startswith("Flagged: ")
    assert banner.bounding_box()["y"] < 300
    assert banner.evaluate("one => getComputedStyle(one).borderLeftStyle") == "double", "more than a colour"
    assert banner.locator("li").count() > 5


def test_the_bars_lie_side_by_side_on_one_scale(opened):
    there = opened()
    bars = there.page.locator("#faults .bar svg")
    assert bars.count() == 36
    assert (
        len({round(one["width"]) for one in bars.evaluate_all("all => all.map(one => ({width: one.getBoundingClientRect().width}))")}) == 1
    )
    ends = bars.evaluate_all("""all => all.map(one => {
        const bar = one.getBoundingClientRect(), last = one.lastElementChild.getBoundingClientRect();
        return (last.right - bar.left) / bar.width; })""")
    assert max(ends) == pytest.approx(1.0, abs=0.01)
    unmanaged, managed = ends[0::2], ends[1::2]
    assert all(one > other for one, other in zip(unmanaged, managed, strict=True))


def test_dark_and_light_differ_and_both_can_be_read(opened):
    backgrounds = set()
    for scheme in ("light", "dark"):
        for name in ("clean", "rigged"):
            there = opened(name, color_scheme=scheme)
            backgrounds.add(there.page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert min(there.contrasts(".v, .note, .label, .bar p, .why, dt, a, figure text")) >= 4.5, "WCAG 2 AA"
    assert len(backgrounds) == 2


@pytest.mark.parametrize("name", ["clean", "hostile"])
def test_print_unfolds_everything_and_cuts_nothing_off(opened, tmp_path, name):
    there = opened(name)
    there.page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    content = (tmp_path / "report.pdf").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", content)) > 5, "every run is listed"
    assert re.search(rb"/MediaBox\s*\[\s*0 0 59[45][.\d]* 84[12][.\d]*\s*\]", content), "A4"
    there.page.set_viewport_size({"width": 703, "height": 1000})  # A4 less its margins
    there.page.emulate_media(media="print")
    assert there.page.locator("#measure-recovery-time details table").is_visible()
    assert not there.page.locator("nav").is_visible()
    wide = there.page.evaluate("""() => [...document.querySelectorAll('main *')].filter(one =>
        one.getBoundingClientRect().right > 704 && getComputedStyle(one).display !== 'none').map(one => one.outerHTML.slice(0, 90))""")
    assert wide == []
