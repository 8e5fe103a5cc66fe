"""How the site is built: `make docs` writes it into site/, warnings as errors, without a network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

import pstn

project, author, release = "pstn", "The pstn maintainers", pstn.__version__
project_copyright = "Apache-2.0; the shipped data have their own terms"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static", "browser"]

html_theme = "furo"
html_title = "pstn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b0440a", "color-brand-content": "#b0440a"},
    "dark_css_variables": {"color-brand-primary": "#ff9a5c", "color-brand-content": "#ff9a5c"},
}

# Links to headings, and equations, as a reader of the plain Markdown has them.
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"

# The pages are built where aeon is not installed too.
autodoc_mock_imports = ["aeon"]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
napoleon_custom_sections = ["Convention"]
napoleon_include_init_with_doc = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# A single backtick is code, in docstrings as on pages, and a link where it is a public name.
default_role = "py:obj"
# Quotes stand for strings, and stay as they are.
smartquotes_action = "D"

_CODE = re.compile(r"(``?[^`]+``?)")
_MARKUP = re.compile(r"[*|]|(?<=\w)_(?!\w)")


def _from_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text to Sphinx's reStructuredText: keep `*size` and `classes_` from being markup."""
    inside = False
    for number, line in enumerate(lines):
        inside = bool(line.strip()) and (inside or line.lstrip().startswith(">>>"))
        if inside:
            continue
        parts = _CODE.split(line)
        lines[number] = "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\g<0>", part) for part in parts)


def _write_math(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """MathML, which browsers typeset by themselves: no script, no fonts, no network."""
    block = isinstance(node, nodes.math_block)
    text = convert(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="math">{text}</div>\n' if block else text)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Before napoleon, which listens at 500."""
    app.connect("autodoc-process-docstring", _from_markdown, priority=400)
    app.add_html_math_renderer("mathml", inline_renderers=(_write_math, None), block_renderers=(_write_math, None))
