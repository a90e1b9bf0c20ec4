"""How the book is built: `make docs` runs Sphinx over this folder, and a warning fails it.

The reference pages are made from the code: the API by a static reader (autoapi), which imports nothing, so that the
book needs neither PySpark nor a JVM; the command line from its own commands; the admin API from `conf/openapi.json`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "spark-throttle"
author = "the authors of spark-throttle"
project_copyright = author
version = release = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.napoleon",
    "autoapi.extension",
    "sphinx_copybutton",
    "sphinx_design",
    "attributes",
    "diagrams",
    "references",
]
exclude_patterns = ["_ext", "_static", "diagrams"]
default_role = "code"  # one backtick in a docstring is code, as in numpydoc

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Only the modules of what `reference-api.md` names: to read them all takes a minute.
_LIBRARY = ROOT / "spark_throttle"
_NAMED = Path(__file__).with_name("reference-api.md").read_text()
_READ = {path.replace(".", "/") for path in re.findall(r"^\.\. autoapi\w+:: (\S+)", _NAMED, re.MULTILINE)}
autoapi_dirs = [str(_LIBRARY)]
autoapi_ignore = [
    str(path)
    for path in _LIBRARY.rglob("*.py")
    if path.name != "__init__.py"
    and str(path.parent.relative_to(ROOT)) not in _READ  # a package that is named is read whole
    and not any(each.startswith(str(path.relative_to(ROOT).with_suffix(""))) for each in _READ)
]
autoapi_generate_api_docs = False
autoapi_add_toctree_entry = False
autoapi_keep_files = False
autoapi_options = ["members", "undoc-members", "show-inheritance", "imported-members"]
autoapi_python_class_content = "class"
autodoc_typehints = "signature"
add_module_names = False
toc_object_entries_show_parents = "hide"  # the class is the line above
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 100
suppress_warnings = ["autoapi.python_import_resolution", "autoapi.not_readable"]

html_theme = "furo"
html_title = f"spark-throttle {release}"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "default"
pygments_dark_style = "github-dark"
nitpicky = False
