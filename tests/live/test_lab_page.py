"""The tracker's web page in a real Chromium."""

import re
import resource
import time
import urllib.error
import urllib.request

import pytest

from rpcsys.tracker.canaries import PAUSE_S
from rpcsys.tracker.speed import BATCH, LEARN
from rpcsys.tracker.views.paths import BOARD, KEY, LEASE, PagePath
from tests.live.browser import DESKTOP, PHONE, Browser
from tests.live.daemons import wait_until
from tests.live.sample_lab import CLEANED, DRAINED, SLOW, ProbedLab, sample_lab
from tests.live.stored import rows

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
    yield browser
    browser.scripts(True)


@pytest.fixture
def lab(daemons):
    started = ProbedLab(daemons)
    yield started
    started.close()
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
    drawn = "return [...document.querySelectorAll('.trace path')].map((e) => e.getAttribute('d').split('M').length - 1)"
    well, slow = page.run(drawn)
    assert (well >= LEARN // BATCH, slow > 0) == (True, True)
    assert "+20.0 % now" in page.run("return document.querySelector('#boards .trace title').textContent")
    page.go(lab.url + "board/shelf-1")
    page.await_text("+20.0 % now", ".trace .scale")
    assert page.run(drawn) == [well, slow]
    assert "its own time is 10 ms" in page.text()
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
    assert page.text("#boards-head") == "Boards 3"
    assert page.text("#keys-head") == "Keys 3"
    assert totals(page) == "slots free 2 slots leased 2 slots out of use 0 slots in all 4 requests waiting 2"
    lab.hello("operator").send({"op": "drain", "id": 1, "server": "tower"})
    page.await_text("drained", "#boards")
    assert totals(page) == "slots free 0 slots leased 2 slots out of use 2 slots in all 4 requests waiting 2"
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
    lab.server(MARKUP, "shelf-1")
    lab.request("ann", MARKUP)
    page.go(lab.url)
    page.await_text("ann", "#boards")
    page.await_text("leased", ".legend", 60)  # the first sample comes after 5 s
    first = page.text("#boards time")
    wait_until(lambda: page.text("#boards time") != first, 30, "the age grows")
    title = page.run("return document.querySelector('.day title').textContent")
    assert title.startswith(f"{MARKUP}, the last ")
    assert re.search(r"the last [12] min: [01]\.\d of at most 1 slots leased on average; ", title)
    assert re.match(r"[12] min ago\s", page.text(".scale"))
    # The only step fills the picture.
    assert page.run("return document.querySelector('path.slots').getBBox().width") == 288


LONG_KEYS = ["k" * 255, "a-key-of-words-" * 16, "jetson-orin-nano-8gb-2"]


@pytest.mark.parametrize("size", [DESKTOP, (1081, 800), (800, 900), PHONE], ids=str)
def test_long_keys_do_not_break_the_layout(lab, page, size):
    for number, key in enumerate([*LONG_KEYS, "rpi4"]):
        lab.server(key, f"shelf-{number}")
    lab.request("somebody-at-the-desk", "rpi4", session_timeout=600)
    page.resize(*size)
    page.go(lab.url)
    page.await_text("somebody-at-the-desk", "#boards")
    assert page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    for selector in ("#keys h3", "#boards [data-head=Key] .long"):
        heights = page.run(LINES, selector)
        assert heights == {"rpi4": 1, LONG_KEYS[0]: 3, LONG_KEYS[1]: 3, LONG_KEYS[2]: 1}, "a usual one is not broken"
    overflowing = "return [...document.querySelectorAll('td')].filter((e) => e.scrollWidth > e.clientWidth)"
    assert page.run(f"{overflowing}.map((e) => e.outerHTML)") == []


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
    find = "const f = document.querySelector('#filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))"
    page.run(find, "RPI4 shelf-3")
    shown = "return [...document.querySelectorAll('#boards tr:not([hidden])')]"
    wait_until(lambda: page.run(f"{shown}.length") == 1, 30, "the filter is applied")
    page.run("[...document.querySelectorAll('#boards tr')].forEach((row) => { row.marked = true })")
    page.run(f"{shown}[0].querySelector('a').focus()")
    lab.server("gpu", "tower-2")
    page.await_text("7", "#totals")
    assert page.run(f"{shown}.map((row) => row.marked)") == [True]
    assert page.text("#boards").startswith("shelf-3")
    marked = "return [...document.querySelectorAll('#boards tr')].filter((row) => !row.marked).length"
    assert page.run(marked) == 1, "only the new row is new"
    lab.request("ann", "rpi4", labels={"server": "shelf-3"})
    page.await_text("ann", "#boards")
    assert page.run("return document.activeElement.textContent") == "shelf-3", "a row that is replaced keeps the focus"
    page.run(find, "no such board")
    page.await_text("No board fits the filter.")


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
    assert page.run("return document.title").startswith("Device lab")
    assert page.console() == []


def test_the_content_security_policy_stops_inserted_scripts(lab, page):
    page.go(lab.url)
    page.await_text("live")
    page.run("document.body.insertAdjacentHTML('beforeend', arguments[0])", MARKUP)
    wait_until(lambda: "Content Security Policy" in str(page.console()), 30, "it is refused")
    assert page.run("return document.title").startswith("Device lab")


#: The texts below a contrast to their background, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio.
LOW_CONTRAST = """
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const ground = (element) => {
        const found = parts(getComputedStyle(element).backgroundColor);
        return found.length === 4 && !found[3] && element.parentElement ? ground(element.parentElement) : found;
    };
    const contrast = (element) => {
        const colours = [parts(getComputedStyle(element).color), ground(element)];
        const [dark, light] = colours.map(luminance).sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const has_text = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.querySelectorAll("body *")]
        .filter((element) => !element.closest("svg") && element.checkVisibility() && has_text(element))
        .filter((element) => contrast(element) < arguments[0])
        .map((element) => `${element.className}: ${element.textContent}`);
"""
WIDTHS = "return [document.documentElement.scrollWidth, innerWidth]"
GROUND = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


@pytest.fixture
def sample(daemons):
    with sample_lab(daemons) as started:
        yield started
        started.tracker.destroy()  # the browser keeps its connections


def paths(lab):
    """The pages of the lab, a drained and a slow board, a key, a lease that runs, and one that is over."""
    running = next(lease["lease"] for server in lab.get("api/lab")["servers"] for lease in server["leases"])
    ((over,),) = rows(lab.state, "SELECT lease FROM leases WHERE outcome = 'crashed' LIMIT 1")
    return ["", f"board/{DRAINED}", f"board/{SLOW}", "key/rpi4", f"lease/{running}", f"lease/{over}"]


def test_every_page_is_readable_on_a_phone_in_light_and_in_dark(sample, page):
    for path in paths(sample):
        for dark in (False, True):
            page.resize(*PHONE, dark=dark)
            page.go(sample.url + path)
            page.await_text("live", "#status")
            assert page.run(WIDTHS) == [PHONE[0], PHONE[0]], path
            assert page.run(LOW_CONTRAST, 4.5) == [], path
            assert (max(page.run(GROUND)) < 60) is dark
        roles = page.roles()
        assert (
            bool(roles["columnheader"]) is bool(roles["table"]) is bool(page.run("return document.querySelector('td')"))
        )
    assert page.console() == []


def test_without_a_script_the_tables_are_all_there(sample, page):
    page.scripts(False)
    wanted = (
        ("eun-ji @ 127.0.0.1", "shelf-4", " UTC", "its canary takes 18.1% longer"),
        ("drained", "by bo", "rpcsys enable shelf-5"),
        ("Its canary", "The last day", "3.11.2", "Past leases"),
        ("Likely served", "carol @ 127.0.0.1", "Usage in the last 7 days"),
        ("running", "eun-ji @ 127.0.0.1"),
        ("over", "its session's process died", CLEANED["removed"][0]),
    )
    for path, texts in zip(paths(sample), wanted, strict=True):
        page.go(sample.url + path)
        shown = page.text()
        assert [text for text in texts if text not in shown] == [], path
        assert page.text("#status").startswith("as of ")
        assert not page.run("return document.querySelector('#filter:not([hidden])')"), (
            "nothing is there that does nothing"
        )


def test_long_names_fit_a_phone(lab, page):
    lab.server("k" * 255, "board" * 50, label="x" * 200)
    user = "somebody" * 30
    for _ in range(2):
        lab.request(user, "k" * 255)
    page.resize(*PHONE)
    for path in ("", "key/" + "k" * 255, "board/" + "board" * 50):
        page.go(lab.url + path)
        page.await_text(user, "main")
        assert page.run(WIDTHS) == [PHONE[0], PHONE[0]]
    assert page.run("return parseFloat(getComputedStyle(document.querySelector('main td')).fontSize)") >= 14


ANY_KEY, ANY_BOARD = "a/b?c=1#%41&d", 'shelf 1/2 "é" <b>'
FOLLOW = "[...document.querySelectorAll('main a')].find((link) => link.textContent === arguments[0]).click()"


def test_links_lead_from_a_queue_to_a_lease_and_its_end_is_shown_live(lab, page):
    board = lab.server(ANY_KEY, ANY_BOARD)
    lab.request("ann", ANY_KEY, session_timeout=600)
    (lease,) = lab.begin(board)
    lab.request("bob", ANY_KEY)
    page.go(lab.url)
    page.await_text("bob", "#keys")
    page.run(FOLLOW, ANY_KEY)
    page.await_text("bob", "table.queue")
    assert page.run("return location.pathname") == PagePath(KEY, ANY_KEY).path
    page.await_text("live", "#status")
    lab.request("carol", ANY_KEY)
    page.await_text("carol", "table.queue")
    page.run(FOLLOW, "ann @ 127.0.0.1")
    page.await_text("running")
    assert page.run("return location.pathname") == PagePath(LEASE, lease["lease"]).path
    lab.end(board, lease, cleaned=CLEANED)
    page.await_text(CLEANED["removed"][0])
    assert "over" in page.text(".state")
    page.run(FOLLOW, ANY_BOARD)
    page.await_text("ann", "table.past")
    assert "leased: " in page.text(".strip")
    assert page.run("return location.pathname") == PagePath(BOARD, ANY_BOARD).path
    assert page.console() == []


@pytest.mark.parametrize("path", ["board/nothing", "key/nothing", "lease/x-1", "live/x-1/board/nothing", "nothing"])
def test_what_is_not_there_is_404_in_one_line(lab, path):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(lab.url + path, timeout=30)
    text = refused.value.read().decode()
    assert (refused.value.code, text.count("\n")) == (404, 1)
    assert refused.value.headers["Content-Security-Policy"].startswith("default-src 'self'")


MANY = 2000
WATCH = """
    window.replaced = 0;
    new MutationObserver((list) => list.forEach((each) => { replaced += each.addedNodes.length; }))
        .observe(document.getElementById("boards"), { childList: true });
    window.longest = 0;
    const note = (each) => { longest = Math.max(longest, each.duration); };
    new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type: "longtask" });
"""


@pytest.mark.slow
def test_two_thousand_boards_stay_smooth(daemons, page):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lab = ProbedLab(daemons, "--max-connections-per-address", str(2 * MANY))
    try:
        for number in range(MANY):
            lab.server(f"key-{number % 40}", f"board-{number:04}", arch="aarch64", rack=str(number % 7))
        start = time.monotonic()
        page.go(lab.url)
        page.await_text("board-1999", "#boards", 20)
        assert page.run("return document.querySelectorAll('#boards tr').length") == MANY
        page.await_text("live", "#status")
        page.run(WATCH)
        lab.request("ann", "key-7", labels={"server": "board-0007"})
        lab.hello("bo").send({"op": "drain", "id": 1, "server": "board-1000"})
        page.await_text("1", "#totals .out dd", 20)
        wait_until(lambda: page.run("return replaced") == 2, 20, "the two rows that changed are new, and no other is")
        assert page.run("return longest") < 1000, "milliseconds: the page answers its user meanwhile"
        assert time.monotonic() - start < 60
    finally:
        lab.close()
        lab.tracker.destroy()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_page_shows_that_the_tracker_is_gone_and_recovers(lab, page, daemons):
    lab.server("rpi4", "shelf-1")
    page.go(lab.url)
    page.await_text("shelf-1")
    lab.tracker.process.kill()
    lab.tracker.process.wait(15)
    page.await_text("does not answer", "#unreachable")
    assert "shelf-1" in page.text("#boards")
    assert page.run("return document.querySelector('main').className") == "stale"
    daemons.tracker("--http-port", str(lab.port))
    page.await_text("No board is here.")
    assert "shelf-1" not in page.text("#boards")
    assert page.run("return document.querySelector('#unreachable').hidden")
    assert page.text("#status").startswith("live")


def test_the_page_loads_nothing_from_other_hosts(lab, page):
    page.go(lab.url)
    page.await_text("live")
    script = "return performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)"
    assert set(page.run(script)) == {lab.url.rstrip("/")}
    assert page.console() == []
