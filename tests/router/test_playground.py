"""The playground: what it loads, and what a person sees who runs a prompt in a real browser."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hypic.router.playground.route import FILES, FOLDER

pytestmark = pytest.mark.cluster

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.parametrize("name", [name for name, _ in FILES.values()])
def test_files_name_no_other_server(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text)
    assert "innerHTML" not in text, "texts of users are never markup"


def test_files_are_served_with_a_policy_and_nothing_else_is(running: Any) -> None:
    for path, (name, kind) in FILES.items():
        answer = httpx.get(running.url + path)
        assert answer.text == (FOLDER / name).read_text()
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    for path in ("/playground/route.py", "/playground/..%2fapi.py", "/playground/"):
        assert httpx.get(running.url + path).status_code == 404, path


@pytest.fixture
def page(running: Any) -> Iterator[Any]:
    """The page in Chromium, its example replaced by two documents. Fails where the page logs an error or asks
    another server for anything. Chromium's own line about a refused request is no error of the page."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install it (apt-get install chromium) to test the page")
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1300, "height": 900})
        tab.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on(
            "request",
            lambda request: None if request.url.startswith((running.url, "data:")) else faults.append(request.url),
        )
        tab.goto(running.url + "/")
        for number, text in enumerate(("Rain was forecast for the weekend. " * 4, "A visitor asked the way. " * 5)):
            tab.locator(".document .text").nth(number).fill(text)
        while tab.locator(".document").count() > 2:
            tab.locator(".document .remove").last.click()
        yield tab
        browser.close()
    assert not faults


def is_fault(message: Any) -> bool:
    return message.type == "error" and "the server responded with a status of 400" not in message.text


def run(page: Any) -> None:
    from playwright.sync_api import expect

    page.keyboard.press("Control+Enter")
    expect(page.locator("#stop")).to_be_hidden(timeout=20_000)
    expect(page.locator("#run")).to_be_enabled(timeout=20_000)


def happened(page: Any) -> list[str]:
    return [row.split(":")[0].split(";")[0] for row in page.locator("#segments tbody td:last-child").all_inner_texts()]


@pytest.mark.browser
def test_a_person_runs_a_prompt_moves_a_document_and_runs_again(page: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#status")).to_contain_text("ok", timeout=10_000)
    page.fill("#salt", str(tmp_path))  # nothing of it has been met before
    run(page)
    assert page.locator(".result b").all_inner_texts() == ["full", "prefix", "hypic"]
    assert all(re.search(r"[\d.]+ ms", text) for text in page.locator(".result .track").all_inner_texts())
    assert happened(page).count("built for this request") == 2
    page.locator(".document .text").last.focus()
    page.keyboard.press("Alt+ArrowUp")
    run(page)
    assert happened(page).count("reused from the cache") == 2
    assert page.locator("#strip i.seam").count() == 2
    page.locator("#which button", has_text="full").click()
    assert set(happened(page)) == {"computed in place"}
    answers = page.locator(".result .answer").all_inner_texts()
    assert len(answers) == 3
    assert all(answers)
    expect(page.locator("#cache .tier").first).to_be_visible(timeout=10_000)


@pytest.mark.browser
def test_a_refusal_is_shown_and_the_page_goes_on(page: Any) -> None:
    from playwright.sync_api import expect

    page.evaluate("document.getElementById('tokens').removeAttribute('max')")
    page.fill("#tokens", "999999999")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#error")).to_contain_text("400", timeout=10_000)
    page.fill("#tokens", "2")
    run(page)
    expect(page.locator("#error")).to_be_hidden()
    assert page.locator(".result").count() == 3
