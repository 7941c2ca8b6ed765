"""A template and values as one page; SVG and styles inline, no script, nothing from the network."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_ENVIRONMENT = Environment(
    loader=PackageLoader("subbyte.report", "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """The text of a page; values are escaped.

    Args:
        template: its path in this package, which extends `pages/base.html.jinja`.
        values: and functions, by the names that the template uses.
    """
    return _ENVIRONMENT.get_template(template).render(**values)
