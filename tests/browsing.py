"""A real browser for tests of pages: headless Chromium, driven by Playwright, from a file, as a person opens it."""

from __future__ import annotations

import contextlib
import shutil
import time

_LIMIT_MS = 180_000
"""For what takes moments, on a machine that is busy with something else."""

_CONTRASTS = """texts => {
    const channel = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    const light = text => {
        const [r, g, b] = text.match(/[0-9.]+/g).map(Number);
        return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return [document.body, ...document.querySelectorAll(texts)].map(one => {
        const style = getComputedStyle(one);
        const ink = light(one.tagName === 'text' ? style.fill : style.color);
        return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    });
}"""

ARGUMENTS = [
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",  # tests beside this one keep images there
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def launched():
    """Start the browser, and end it with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=ARGUMENTS, timeout=_LIMIT_MS
        )
        yield browser
        browser.close()


class Opened:
    """A page, with everything that it complained of or asked the network for."""

    def __init__(self, browser, path, **context):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
        self.context.set_default_timeout(_LIMIT_MS)
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def wait_for_complaint(self, words):
        """Wait until it has complained of something with `words` in it: the browser tells when it comes to it."""
        end_s = time.monotonic() + _LIMIT_MS / 1000
        while not any(words in line for line in self.complaints):
            assert time.monotonic() < end_s, f"no complaint of {words}: {self.complaints}"
            self.page.wait_for_timeout(20)

    def contrasts(self, texts):
        """Return the contrast (WCAG 2) with the page's ground of its body and of all that the selector `texts` finds."""
        return self.page.evaluate(_CONTRASTS, texts)
