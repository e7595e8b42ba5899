"""The console's page, in a real browser."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from kworker.core.pauses import ALL, order_pause
from kworker.instance.pause_file import PauseFile
from tests.support.bare_service import Service
from tests.support.browser import View, chromium

MARKUP = "<img src=x onerror=alert(1)> &"
ILL_WILL = f"{MARKUP} \udcff"
# The least contrast of text that WCAG 2 asks for (AA).
CONTRAST = 4.5
CONTRASTS = """() => {
  const luminance = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const back = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")]
    .filter((element) => element.checkVisibility() && [...element.childNodes].some(
      (node) => node.nodeType === Node.TEXT_NODE && node.data.trim()))
    .map((element) => {
      const [a, b] = [luminance(getComputedStyle(element).color), luminance(back(element))];
      return [element.textContent, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
    });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def address(service: Service, free_port: Callable[[], int]) -> str:
    port = free_port()
    service.write(settings={"console": {"listen": f"127.0.0.1:{port}"}})
    return f"http://127.0.0.1:{port}/"


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Callable[..., View]]:
    """Opens the page; at the end, nothing was wrong in it."""
    views: list[View] = []

    def go(**options: object) -> View:
        views.append(View(browser, address, **options))
        return views[-1]

    yield go
    for view in views:
        view.close()
        assert view.wrong == []


@pytest.fixture
def red(service: Service, address: str) -> Service:
    """One of its workers has a problem and a dead letter, whose texts a stranger wrote."""
    assert address
    letters = [["orders:0:7", MARKUP, ILL_WILL, 1_790_000_000_000]]
    behind = {"orders": [40, 2], MARKUP: [7]}
    service.write(
        behaviour={
            "1": {"reasons": [ILL_WILL], "letters": letters},
            "delay": {"behind": behind, "rows": [["1s", 3, None]]},
        }
    )
    service.serve()
    return service


def test_one_look_tells_who_works_on_what(service: Service, opened: Callable[..., View]) -> None:
    service.serve()
    view = opened()
    view.reads("#state", "running")
    rows = view.page.locator("#worker-rows tbody tr")
    assert rows.count() == 2
    pids = [str(pid) for pid in service.running().values()]
    assert [pid in text for pid, text in zip(pids, rows.all_inner_texts(), strict=True)] == [
        True,
        True,
    ]
    assert view.page.title() == "running: orders"
    assert view.page.locator("#problems").is_hidden()


def test_what_others_wrote_is_text_and_never_markup(
    red: Service, opened: Callable[..., View]
) -> None:
    assert red
    view = opened()
    view.reads("#problems li", "<img src=x onerror=alert(1)> &")
    view.reads("#letter-rows td", "<img src=x onerror=alert(1)> &")
    view.reads("#letter-rows td", "orders:0:7")
    view.reads("#topic-rows td", "<img src=x onerror=alert(1)> &")
    view.reads("#topic-rows tr", "orders242")
    assert view.page.locator("img").count() == 0
    view.reads("#state", "red")
    view.reads("#worker-rows td", "running, a problem")  # in words, too: hues are not for everybody


def test_it_is_live(service: Service, opened: Callable[..., View]) -> None:
    service.write(limits={"restart": {"deaths_at_once": 0, "first_delay_s": 2.0}})
    service.serve()
    view = opened()
    view.reads("#state", "running")
    killed = service.running()[0]
    os.kill(killed, signal.SIGKILL)
    view.reads("#problems li", "worker 0 exited (SIGKILL); next start in")
    view.reads("#events li", "the service was running, and is red")
    view.reads("#state", "running")
    view.reads("#events li", f"worker 0 has ended: it was pid {killed}")
    assert view.page.locator("#problems").is_hidden()


def test_it_shows_who_paused_what(service: Service, opened: Callable[..., View]) -> None:
    now_ms = round(time.time() * 1000)
    orders = order_pause({}, [ALL], "<b>me</b>@here", now_ms, None)
    orders |= order_pause({}, ["orders"], "you@there", now_ms, now_ms + 3_600_000)
    PauseFile(service.folder / "pauses.json").add(orders)
    service.serve()
    view = opened()
    view.reads("#state", "paused")
    view.reads("#paused li", "all topics by <b>me</b>@here for")
    view.reads("#paused li", "until kworker resume")
    view.reads("#paused li", "orders by you@there for")
    view.reads("#paused li", "ends in")
    (service.folder / "pauses.json").unlink()
    view.reads("#state", "running")
    assert view.page.locator("#paused").is_hidden()


def test_it_says_so_when_the_supervisor_is_silent_or_gone(
    service: Service, opened: Callable[..., View]
) -> None:
    service.serve()
    view = opened()
    view.reads("#state", "running")
    service.send(signal.SIGSTOP)
    view.reads("#gone", "the supervisor has not answered for")
    view.reads("#gone", "What stands here is")
    service.send(signal.SIGCONT)
    view.page.locator("#gone").wait_for(state="hidden")
    service.send(signal.SIGTERM)
    assert service.exit_code() == 0
    view.reads("#gone", "The console does not answer")
    assert view.page.locator("#worker-rows tbody tr").count() == 2
    view.wrong = [text for text in view.wrong if "ERR_CONNECTION_REFUSED" not in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_dark(
    red: Service, opened: Callable[..., View], tmp_path: Path, scheme: str
) -> None:
    assert red
    view = opened(color_scheme=scheme)
    view.reads("#state", "red")
    view.page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
    found = view.page.evaluate(CONTRASTS)
    assert len(found) > 40
    assert [(text, round(ratio, 1)) for text, ratio in found if ratio < CONTRAST] == []


def test_a_phone_shows_all_of_it(red: Service, opened: Callable[..., View], tmp_path: Path) -> None:
    assert red
    view = opened(viewport={"width": 360, "height": 640})
    view.reads("#problems li", "<img")
    view.page.screenshot(path=tmp_path / "narrow.png", full_page=True)
    assert view.page.evaluate("document.scrollingElement.scrollWidth") <= 360


def test_the_keyboard_reaches_all_of_it(red: Service, opened: Callable[..., View]) -> None:
    assert red
    view = opened()
    view.reads("#state", "red")
    view.page.keyboard.press("Tab")
    assert view.focused() == "Skip to the workers"
    view.page.keyboard.press("Enter")
    assert view.focused() == "workers"
    reached = []
    for _ in range(12):
        view.page.keyboard.press("Tab")
        reached.append(view.focused())
    assert {"status.json", "metrics", "livez", "readyz", "startupz"} <= set(reached)
