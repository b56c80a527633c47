"""Sphinx's settings for the site of these pages (CONTRIBUTING.md has the command)."""

project = "rolloutbench"
author = "the rolloutbench developers"
extensions = ["myst_parser"]
root_doc = "index"
# As GitHub makes anchors of headings, so that a link works in both places.
myst_heading_anchors = 4
# A block without a language is a command or a message, which no lexer knows.
highlight_language = "none"
# Quotes and dashes stand as they are written.
smartquotes = False

html_theme = "furo"
html_title = "rolloutbench"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
