"""From data to one self-contained HTML file: templates, style, script, nothing fetched from anywhere.

All text is escaped by the templates. A content policy in the page admits the page's one script by its hash and no
connection at all, so that text which slipped through could neither run nor call home.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kleash import __version__
from kleash.errors import RunError
from kleash.report import forest
from kleash.report.charts import hover, svg
from kleash.whole import write_whole


@cache
def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("kleash.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals |= scripts("hover.js.j2", of=env) | {
        "svg": svg,
        "forest_svg": forest.svg,
        "hover": hover,
        "version": __version__,
        "connect": "",
        "root": ":root",
        "body": "body",
    }
    return env


def scripts(*names: str, of: Environment | None = None) -> dict[str, Any]:
    """A page's one script, made of these files, and the hash by which its content policy admits it."""
    script = "".join((of or environment()).get_template(name).render() for name in names)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": Markup(script), "script_hash": f"sha256-{digest}"}


def render(template: str, **data: Any) -> str:
    return environment().get_template(template).render(**data)


def view(template: str, **data: Any) -> str:
    """A piece of HTML for a notebook: the same parts and style as the pages, which hold in it alone. No script."""
    return render(template, root=Markup("&"), body=Markup("&"), **data)


def write(path: Path, template: str, **data: Any) -> Path:
    """Renders a template to a file, which appears whole or not at all.

    Raises:
        RunError: the file cannot be written.
    """
    text = render(template, **data)
    try:
        return write_whole(path, text, errors="backslashreplace")
    except OSError as error:
        raise RunError(f"cannot write the page {path}: {error.strerror or error}") from error
