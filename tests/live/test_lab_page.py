"""The tracker's web page in a real Chromium."""

import re
import time

import pytest

from rpcsys.tracker.canaries import PAUSE_S
from rpcsys.tracker.speed import BATCH, LEARN
from tests.live.browser import DESKTOP, PHONE, Browser
from tests.live.daemons import free_port, wait_until
from tests.live.probe import TrackerProbe

ENTER = "document.title='entered'"
MARKUP = f'<img/src="x"onerror={ENTER}>'
SCRIPT = f'</td><script>{ENTER}</script><img src=x onerror="{ENTER}">\' onload={ENTER}'


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser):
    browser.resize(*DESKTOP)
    browser.console()
    return browser


class Lab:
    """A tracker with a web page, and its raw servers and clients."""

    def __init__(self, daemons):
        self.port = free_port()
        self.tracker = daemons.tracker("--http-port", str(self.port))
        self.url = f"http://127.0.0.1:{self.port}/"
        self.probes = []

    def hello(self, user):
        probe = TrackerProbe(self.tracker.address)
        self.probes.append(probe)
        assert probe.ask([1, {"op": "hello", "version": "0", "user": user}])["ok"]
        return probe

    def server(self, key, name, slots=1, devices=(), **labels):
        probe = self.hello("")
        asked = {"op": "register", "id": 1, "key": key, "name": name, "port": 9090, "slots": slots}
        assert probe.ask({**asked, "labels": labels, "devices": devices})["ok"]
        for slot in range(slots):
            assert probe.ask([3, key, [9090, f"{key}:{slot}"], None]) == 0
        return probe

    def request(self, user, key, **fields):
        probe = self.hello(user)
        probe.send({"op": "request", "id": 1, "key": key, "wait_for_key": True, **fields})
        probe.receive()
        return probe


@pytest.fixture
def lab(daemons):
    started = Lab(daemons)
    yield started
    for probe in started.probes:
        probe.close()
    for tracker in daemons.started:
        tracker.destroy()  # the browser keeps its connections


def test_a_slow_board_is_shown_with_the_history_of_its_canary(lab, page):
    probe = lab.server("rpi4", "shelf-1")
    for number in range(LEARN + 2 * BATCH):
        time.sleep(PAUSE_S)  # faster ones are not counted
        probe.ask({"op": "canary", "id": 1, "canary": "builtin", "seconds": 0.01 if number < LEARN else 0.012})
    page.go(lab.url)
    page.await_text("its canary takes 20.0% longer than its own 10 ms")
    page.await_text("slow", "#boards .state.bad")
    assert page.run("return document.querySelectorAll('#boards svg.trace line.well').length") >= LEARN // BATCH
    assert "+20.0 % now" in page.run("return document.querySelector('#boards svg.trace title').textContent")
    assert page.console() == []


def test_the_lab_is_shown_live(lab, page):
    lab.server("rpi4", "shelf-1", board="rev2")
    lab.server("rpi4", "shelf-2")
    lab.server("gpu", "tower", slots=2, devices=["cpu:0", "cuda:0"])
    page.go(lab.url)
    page.await_text("shelf-1")
    assert "device=cpu:0 device=cuda:0" in page.text("#boards")
    assert "2 of 2 slots free, 0 leased" in page.text("#keys")
    assert "board=rev2" in page.text("#boards")
    # The page updates itself, without a reload.
    lab.request("ann", "rpi4", session_timeout=600)
    lab.request("bob", "rpi4")
    carol = lab.request("carol", "rpi4")
    lab.request("dave", "nowhere")
    page.await_text("carol", "#keys")
    shown = page.text("#boards")
    assert "ann @ 127.0.0.1" in shown
    assert "9 min" in shown
    assert "no limit" in shown
    assert "0 of 2 slots free, 2 leased, 1 waiting" in page.text("#keys")
    assert "no server, 1 waiting" in page.text("#keys")
    assert page.text("#boards-head") == "Boards (3)"
    assert page.text("#keys-head") == "Keys (3)"
    assert totals(page) == "4 slots 2 slots free 2 slots leased 0 slots out of use 2 requests waiting"
    lab.hello("operator").send({"op": "drain", "id": 1, "server": "tower"})
    page.await_text("drained", "#boards")
    assert totals(page) == "4 slots 0 slots free 2 slots leased 2 slots out of use 2 requests waiting"
    page.await_text("by operator", "#boards")
    carol.close()
    wait_until(lambda: "carol" not in page.text("#keys"), 30, "carol is gone")
    assert page.console() == []


def test_a_gone_board_is_shown_with_its_holder(lab, page):
    board = lab.server("rpi4", "shelf-1")
    lab.request("ann", "rpi4")
    page.go(lab.url)
    page.await_text("ann @ 127.0.0.1", "#boards")
    board.close()
    page.await_text("gone", "#boards")
    shown = page.text("#boards")
    assert "ann @ 127.0.0.1" in shown
    assert "its connection ended; its sessions may go on" in shown
    # The lease ends after 10 s; the board stays in the list.
    wait_until(lambda: "ann" not in page.text("#boards"), 60, "the lease is over")
    assert "its connection ended" in page.text("#boards")


def totals(page):
    return " ".join(page.text("#totals").split())


@pytest.mark.slow
def test_charts_and_ages_are_updated(lab, page):
    lab.server("rpi4", "shelf-1")
    lab.request("ann", "rpi4")
    page.go(lab.url)
    page.await_text("ann", "#boards")
    page.await_text("leased", ".legend", 60)  # the first sample comes after 5 s
    first = page.text("#boards .age")
    wait_until(lambda: page.text("#boards .age") != first, 30, "the age grows")
    title = page.run("return document.querySelector('svg title').textContent")
    assert re.fullmatch(r"rpi4, the last [12] min: [01]\.\d of at most 1 slots leased on average; .*", title)
    assert re.match(r"[12] min ago\s", page.text(".scale"))
    # The only step fills the picture.
    assert page.run("return document.querySelector('path.slots').getBBox().width") == 288


LONG_KEYS = ["k" * 255, "a-key-of-words-" * 16, "jetson-orin-nano-8gb-2"]


@pytest.mark.parametrize("size", [DESKTOP, (1000, 800), (800, 900), PHONE], ids=str)
def test_long_keys_do_not_break_the_layout(lab, page, size):
    for number, key in enumerate([*LONG_KEYS, "rpi4"]):
        lab.server(key, f"shelf-{number}")
    lab.request("somebody-at-the-desk", "rpi4", session_timeout=600)
    page.resize(*size)
    page.go(lab.url)
    page.await_text("somebody-at-the-desk", "#boards")
    assert page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    for selector in ("#keys h3", "#boards [data-head=Key] span"):
        heights = page.run(LINES, selector)
        assert heights == {"rpi4": 1, LONG_KEYS[0]: 3, LONG_KEYS[1]: 3, LONG_KEYS[2]: 1}, "a usual one is not broken"
    overflowing = "return [...document.querySelectorAll('td')].filter((e) => e.scrollWidth > e.clientWidth).length"
    assert page.run(overflowing) == 0


#: The number of lines that each element shows, by its title.
LINES = """
    const lines = (e) => Math.round(e.clientHeight / parseFloat(getComputedStyle(e).lineHeight));
    return Object.fromEntries([...document.querySelectorAll(arguments[0])].map((e) => [e.title, lines(e)]));
"""


def test_a_filter_and_a_selection_survive_updates(lab, page):
    for number in range(5):
        lab.server("rpi4", f"shelf-{number}")
    lab.server("gpu", "tower")
    page.go(lab.url)
    page.await_text("tower")
    page.run(
        "const f = document.querySelector('#filter'); f.value = 'RPI4 shelf-3'; f.dispatchEvent(new Event('input'));"
        "document.querySelector('#boards tr').marked = true"
    )
    lab.server("gpu", "tower-2")
    page.await_text("7", "#totals")
    assert page.run("return [...document.querySelectorAll('#boards tr')].map((row) => row.marked)") == [True]
    assert "shelf-3" in page.text("#boards")


def test_names_are_never_markup(lab, page):
    lab.server(MARKUP, SCRIPT, **{MARKUP: SCRIPT})
    lab.request(SCRIPT, MARKUP)
    lab.request(MARKUP, MARKUP)
    lab.request("bob", MARKUP, labels={SCRIPT: MARKUP})
    lab.request(SCRIPT, "__proto__")
    page.go(lab.url)
    page.await_text(MARKUP, "#keys")
    page.await_text("__proto__", "#keys")
    assert SCRIPT in page.text("#boards")
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    page.await_text("leased", ".legend", 60)
    assert page.run("return document.title").startswith("Device lab")
    assert page.console() == []


def test_the_content_security_policy_stops_inserted_scripts(lab, page):
    page.go(lab.url)
    page.await_text("live")
    page.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", MARKUP)
    wait_until(lambda: "Content Security Policy" in str(page.console()), 30, "it is refused")
    assert page.run("return document.title").startswith("Device lab")


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable_on_a_phone(lab, page, dark):
    lab.server("rpi4", "a-board-with-a-name-that-is-far-too-long-for-a-phone." * 4, label="x" * 200)
    lab.request("somebody-with-a-name-that-is-far-too-long-for-a-phone" * 4, "rpi4")
    lab.request("ann", "rpi4")
    page.resize(*PHONE, dark=dark)
    page.go(lab.url)
    page.await_text("ann", "#keys")
    assert page.run("return [document.documentElement.scrollWidth, innerWidth]") == [PHONE[0], PHONE[0]]
    assert page.run("return getComputedStyle(document.querySelector('thead')).display") == "none"
    small = "return parseFloat(getComputedStyle(document.querySelector('#boards td')).fontSize)"
    assert page.run(small) >= 14
    assert contrast(page, "#boards td") > 7
    assert contrast(page, ".state") > 4.5
    assert contrast(page, ".card p") > 4.5
    (brightness,) = page.run("return [getComputedStyle(document.body).backgroundColor]")
    assert (luminance(numbers(brightness)) < 0.1) is dark


def numbers(colour):
    return [int(part) for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]


def luminance(colour):
    """Relative luminance, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [part / 255 for part in colour]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(page, selector):
    """The contrast of an element's text to its background: 4.5 is readable, 7 is good."""
    script = """
        let element = document.querySelector(arguments[0]);
        const text = getComputedStyle(element).color;
        while (getComputedStyle(element).backgroundColor === 'rgba(0, 0, 0, 0)') element = element.parentElement;
        return [text, getComputedStyle(element).backgroundColor];
    """
    light, dark = sorted((luminance(numbers(c)) for c in page.run(script, selector)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_page_shows_that_the_tracker_is_gone_and_recovers(lab, page, daemons):
    lab.server("rpi4", "shelf-1")
    page.go(lab.url)
    page.await_text("shelf-1")
    lab.tracker.process.kill()
    lab.tracker.process.wait(15)
    page.await_text("does not answer", "#unreachable")
    assert "shelf-1" in page.text("#boards")
    assert page.run("return document.querySelector('#lab').className") == "stale"
    daemons.tracker("--http-port", str(lab.port))
    page.await_text("No board is here.")
    assert page.run("return document.querySelector('#unreachable').hidden")
    assert page.text("#status").startswith("live")


def test_the_page_loads_nothing_from_other_hosts(lab, page):
    page.go(lab.url)
    page.await_text("live")
    script = "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)"
    assert set(page.run(script)) == {lab.url.rstrip("/")}
    assert page.console() == []
