"""Templates to HTML: one environment for every page, everything from data escaped."""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from importlib import resources
from typing import Any

from electra.errors import ConfigError, pip_install
from electra.progress import clock, scaled


def require_drawing(command: str) -> None:
    """Refuse now what would fail after hours: the packages that draw the page."""
    for package in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(command, f"needs {package}", fix=pip_install("report"))


def render_page(template: str, **values: Any) -> str:
    """The page as HTML text; charts must be `Markup` already, everything else is escaped."""
    from markupsafe import Markup

    return str(_environment().get_template(template).render(style=Markup(style_sheet()), **values))


@cache
def _environment() -> Any:
    """With every template that it has compiled: that takes a third of a page's time."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=FunctionLoader(_file)
    )
    environment.filters |= {"scaled": scaled, "clock": clock, "power": power, "percent": lambda x: f"{x:.1%}"}
    return environment


def style_sheet() -> str:
    """The style of every page, and of charts that stand alone."""
    return _file("page.css")


def power(value: float) -> tuple[str, int]:
    """A number as digits and a power of ten: 1.23 and 15."""
    if value <= 0:
        return "0", 0
    exponent = math.floor(math.log10(value))
    return f"{value / 10**exponent:.2f}", exponent


def _file(name: str) -> str:
    return (resources.files("electra.report") / name).read_text(encoding="utf-8")
