"""The report in a real browser: light, dark and phone width, for eyes, keyboard and screen reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_checks import DESK, PHONE, browser, problems, unseen_focus
from report_folders import HOSTILE, lines, make_experiment, make_glue, make_run, make_tuned, results

from electra.report import write_report

BAD = """<!doctype html><html><head><title></title><style>body {{ color: #999; background: #fff }}
pre {{ overflow: auto; width: 40px }} :focus {{ outline: none }}</style></head><body><header>
<h1>One</h1><h3>Three</h3><svg></svg><img src="data:,"><a href="#gone"></a></header>
<main><section>x</section><table><tr><td>1</td><td>2</td></tr><tr><td>1</td></tr></table><pre>{long}</pre>
<div style="width: 3000px">{long}</div></main><footer id="a"><p id="a">dim</p></footer><div>lost</div></body></html>"""

WRONG = (
    *("no language", "no title", "outside every landmark", "section without a name", "heading skips from h1"),
    *("picture without a name", "picture without alt", "control without a name", "table without headers"),
    *("rows of several widths", "id twice", "link to nothing", "contrast 2.85", "scrolls sideways"),
    *("not by keyboard", "clipped at the edge"),
)


def test_the_page_of_everything_is_for_everyone(tmp_path: Path) -> None:
    """Every kind of section on one page: two runs, one of them a demo with hostile text, scores, an experiment."""
    demo = make_run(tmp_path / "run", lines(word=HOSTILE))
    (demo / "demo.json").write_text(json.dumps(results(HOSTILE)))
    folders = [
        demo,
        make_run(tmp_path / ("a-run-with-a-name-too-long-for-a-phone" * 2), lines()),
        make_tuned(tmp_path / "reviews", text=HOSTILE * 8),
        make_glue(tmp_path / "glue"),
        make_experiment(tmp_path / "efficiency"),
    ]
    page = write_report(*folders, out=tmp_path / "all.html")
    single = write_report(demo)
    with browser() as opened:
        for path, scheme, width in (
            (page, "light", PHONE),
            (page, "dark", DESK),
            (single, "dark", PHONE),
            (single, "light", DESK),
        ):
            context = opened.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
            shown, asked, errors = context.new_page(), [], []
            shown.on("request", lambda request, asked=asked: asked.append(request.url))
            shown.on("console", lambda message, errors=errors: errors.append(message.text))
            shown.goto(path.as_uri())
            assert problems(shown) == [], (path.name, scheme, width)
            assert asked == [path.as_uri()] and errors == []
            context.close()
        shown = opened.new_page()
        shown.goto(page.as_uri())
        assert unseen_focus(shown) == []


def test_the_checks_find_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(BAD.format(long="x" * 400))
    with browser() as opened:
        shown = opened.new_page(viewport={"width": PHONE, "height": 800})
        shown.goto(path.as_uri())
        found = " ".join(problems(shown))
        with pytest.raises(AssertionError):
            unseen_focus(shown)
    for problem in WRONG:
        assert problem in found, problem
