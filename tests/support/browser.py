"""A headless Chromium that tests look at the console with."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

_WAIT_MS = 15_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's own; `make test` installs it."""
    path = shutil.which("chromium")
    assert path, "the page is tested in Chromium, which `make test` installs: is apt-get missing?"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class View:
    """One page in a browser, and what went wrong in it: errors, and requests to other places."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        context = browser.new_context(**options)
        context.set_default_timeout(_WAIT_MS)
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("request", lambda request: self._see(request.url, address))
        self.page.goto(address)

    def close(self) -> None:
        self.page.context.close()

    def reads(self, selector: str, text: str) -> None:
        """Waits until the element has this text."""
        self.page.locator(selector, has_text=text).first.wait_for(state="attached")

    def focused(self) -> str:
        """The id, or else the text, of what has the focus."""
        return str(
            self.page.evaluate("document.activeElement.id || document.activeElement.textContent")
        )

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _see(self, url: str, address: str) -> None:
        if not url.startswith(address):
            self.wrong.append(f"asked {url}")
