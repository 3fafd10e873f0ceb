"""Sphinx configuration. Built with warnings as errors by scripts/check."""

project = "Perdure"
author = "The Perdure developers"
copyright = "The Perdure developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["deflist", "fieldlist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "Perdure"
exclude_patterns = ["_build"]
nitpicky = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
