"""The page of `electra serve` in a real Chromium: load, type, click, look; no console error, nothing remote."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tuned_folders
from model_folders import make_run
from served import LIMIT_S, served
from test_serve import write_metrics

CHROMIUM = Path(os.environ.get("ELECTRA_CHROMIUM", "/usr/bin/chromium"))
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no Chromium at {CHROMIUM} (ELECTRA_CHROMIUM names one)")

# What an accessibility checker calls serious: names, labels, unique ids, heading order, contrast of 4.5.
CHECK = """() => {
  const problems = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (one) => one.checkVisibility();
  const ids = all("[id]").map((one) => one.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) problems.push(`two elements #${id}`);
  for (const one of all("input, textarea").filter(visible))
    if (!one.labels.length || !one.labels[0].textContent.trim()) problems.push(`no label: ${one.id}`);
  for (const one of all("button, a, summary").filter(visible))
    if (!one.textContent.trim()) problems.push(`no name: ${one.outerHTML}`);
  for (const one of all("svg")) if (!one.getAttribute("aria-label")) problems.push("a picture without a name");
  const depths = all("h1, h2, h3").filter(visible).map((one) => Number(one.localName[1]));
  if (depths[0] !== 1 || depths.some((one, at) => at && one > depths[at - 1] + 1)) problems.push(`headings ${depths}`);
  if (!document.documentElement.lang || !document.title) problems.push("no language or title");
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (value) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = value;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (one) => {
    const layers = [];
    for (let at = one; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    const over = (under, top) => under.map((value, at) => value + ((top[at] - value) * top[3]) / 255);
    return layers.reverse().reduce(over, [255, 255, 255]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !visible(one) || one.closest(".mirror, .skip, noscript, svg, script")) continue;
    const [a, b] = [light(colour(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(2)}: ${text.slice(0, 30)}`);
  }
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) problems.push(`wider than the screen: ${width}`);
  return [...new Set(problems)];
}"""
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        playwright.expect.set_options(timeout=LIMIT_S * 1000)
        yield opened
        opened.close()


@contextmanager
def opened(browser: Any, url: str, look: str = "light", *, refusals: int = 0) -> Iterator[Any]:
    """The page; at the end nothing may have been said on the console, or asked of another site."""
    context = browser.new_context(**LOOKS[look])
    context.set_default_timeout(LIMIT_S * 1000)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda line: problems.append(f"{line.type}: {line.text}"))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(url) else problems.append(f"asked {asked.url}"))
    page.goto(url)
    yield page
    assert len(problems) == refusals and all("status of 422" in line for line in problems), problems
    context.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("page") / "<b>run"
    make_run(folder)
    write_metrics(folder, 40)
    with served(folder) as url:
        yield url, folder


@pytest.mark.parametrize("look", LOOKS)
def test_type_click_and_follow(browser: Any, run: tuple[str, Path], look: str, tmp_path: Path) -> None:
    url, folder = run
    with opened(browser, url, look) as page:
        expect = playwright.expect
        expect(page.locator("h1")).to_have_text("<b>run")
        text = "the \N{GRINNING FACE} chef <img src=x onerror=alert(1)> ate money"
        page.get_by_label("Type a sentence").fill(text[:-4])
        page.get_by_label("Type a sentence").press_sequentially(text[-4:])
        tokens = httpx.post(f"{url}/api/detect", json={"text": text}, timeout=LIMIT_S).json()["tokens"]
        shades = page.locator("#mirror .shade")
        expect(shades).to_have_count(len(tokens))
        expect(shades.last).to_have_text("money")
        expect(page.locator("#summary")).to_contain_text(f"{len(tokens)} tokens")
        found = [float(one.evaluate("one => one.style.getPropertyValue('--p')")) for one in shades.all()]
        assert found == pytest.approx([token["probability"] for token in tokens], abs=2e-3)
        assert page.locator("#mirror").inner_text().rstrip("\u200b") == text
        page.get_by_text("Token by token").click()
        expect(page.locator("#tokens tr")).to_have_count(len(tokens))
        page.get_by_label("Share of tokens").focus()
        for _ in range(7):
            page.keyboard.press("ArrowRight")
        expect(page.locator("#rate-value")).to_have_text("50 %")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#replace-summary")).to_contain_text("The generator replaced")
        assert page.locator("#replaced .shade").count() <= len(tokens) and page.locator("#replaced ruby").count() > 0
        expect(page.locator("#run-state")).to_contain_text("step 40 of 3,000")
        expect(page.locator("#charts figure")).to_have_count(3)
        expect(page.locator("#sample-text rt")).to_have_text("cat")
        assert page.evaluate(CHECK) == []
        picture = page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert len(picture) > 20_000
        if look == "phone":
            write_metrics(folder, 60)
            expect(page.locator("#run-state")).to_contain_text("step 60 of 3,000")


def test_a_question_and_tags_and_labels(browser: Any, tmp_path: Path) -> None:
    expect = playwright.expect
    tuned_folders.save(tmp_path / "span", "span")
    context = "\N{GRINNING FACE} we saw the chef. the dog ate the meal"
    with served(tmp_path / "span") as url, opened(browser, url) as page:
        page.get_by_label("Question", exact=True).fill("who ate")
        page.get_by_label("Passage", exact=True).fill(context)
        row = {"question": "who ate", "context": context}
        answer = httpx.post(f"{url}/api/predict", json={"rows": [row]}, timeout=LIMIT_S).json()["predictions"][0]
        assert answer["answer"] == context[answer["start"] : answer["end"]] != ""
        expect(page.locator("mark")).to_have_text(answer["answer"])
        assert page.evaluate(CHECK) == []
    tuned_folders.save(tmp_path / "tag", "tag")
    with served(tmp_path / "tag") as url, opened(browser, url, "phone") as page:
        page.get_by_label("Sentence", exact=True).fill("the chef ate")
        tags = httpx.post(f"{url}/api/predict", json={"rows": [{"words": ["the", "chef", "ate"]}]}, timeout=LIMIT_S)
        wanted = [tag for tag in tags.json()["predictions"][0]["tags"] if tag != "O"]
        expect(page.locator("#prediction rt")).to_have_text(wanted)
    tuned_folders.save(tmp_path / "pair", "classify", pairs=True)
    with served(tmp_path / "pair") as url, opened(browser, url, "dark") as page:
        page.get_by_label("First text").fill("the chef ate")
        page.get_by_label("Second text").fill("the dog sat")
        row = {"text": "the chef ate", "pair": "the dog sat"}
        found = httpx.post(f"{url}/api/predict", json={"rows": [row]}, timeout=LIMIT_S).json()["predictions"][0]
        expect(page.locator(".answer")).to_have_text(found["label"])
        assert page.evaluate(CHECK) == []


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_says_what_was_not_read(browser: Any, tmp_path: Path, look: str) -> None:
    """A text that fits, one token more, and many."""
    expect = playwright.expect
    tuned_folders.save(tmp_path / "one", "classify")
    with served(tmp_path / "one") as url, opened(browser, url, look) as page:
        task = httpx.get(f"{url}/api/model", timeout=LIMIT_S).json()["task"]
        fits = " ".join(["dog"] * (task["length"] - 2))
        for text, line in (
            (fits, None),
            (f"{fits} dog", f"The last token was not read: the model takes {task['length']} with"),
            (f"{fits} {fits}", f"The last {task['length'] - 2} tokens were not read"),
        ):
            page.get_by_label("Text", exact=True).fill(text)
            found = httpx.post(f"{url}/api/predict", json={"rows": [{"text": text}]}, timeout=LIMIT_S).json()
            assert found["lost_tokens"] == [len(text.split()) + 2 - task["length"]]
            expect(page.locator(".answer")).to_have_text(found["predictions"][0]["label"])
            expect(page.locator(".cut")).to_have_count(0 if line is None else 1)
            if line is not None:
                expect(page.locator(".cut")).to_contain_text(line)
        assert page.evaluate(CHECK) == []
        page.screenshot(path=tmp_path / "cut.png", full_page=True)


def test_a_problem_is_named_and_goes_away(browser: Any, run: tuple[str, Path]) -> None:
    expect = playwright.expect
    url, _ = run
    with opened(browser, url, refusals=1) as page:
        expect(page.locator("#mirror .shade").first).to_be_visible()
        page.route("**/api/detect", lambda route: route.fulfill(status=422, json={"error": "text: too long"}), times=1)
        page.get_by_label("Type a sentence").fill("the dog ate")
        expect(page.get_by_role("alert")).to_have_text("text: too long")
        page.get_by_label("Type a sentence").fill("the dog sat")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.locator("#mirror .shade").last).to_have_text("sat")
