"""Files of the product as canonical text: one line per value, without what differs between machines and days."""

import hashlib
import json
import re
from html.parser import HTMLParser

import pyarrow.parquet as pq

# Elements whose content is not read, and elements that are a line of their own.
SKIPPED = {"script", "style", "svg"}
INLINE = {"a", "abbr", "b", "code", "em", "i", "q", "small", "span", "strong", "sub", "sup", "time", "var"}

"""Part of a file (a column, a key, a section) -> its canonical text."""


def digest(text):
    """A short line is its own digest."""
    if len(text) <= 60 and "\n" not in text:
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_json(path, hide):
    """Every key of the file; a list of mappings is a line per entry."""
    return {key: hide(lines_of(value)) for key, value in json.loads(path.read_text(encoding="utf-8")).items()}


def lines_of(value):
    if isinstance(value, list):
        return "\n".join(json.dumps(one, sort_keys=True, ensure_ascii=False) for one in value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)


def of_parquet(path, hide):
    """Every column with its values in full, the columns' order and types, and the metadata of the file."""
    table = pq.read_table(path)
    names = [f"{field.name}: {str(field.type).replace('large_', '')}" for field in table.schema]
    found = {"(columns)": "\n".join(names)}
    for key, raw in sorted((table.schema.metadata or {}).items()):
        if key not in (b"pandas", b"ARROW:schema"):
            found[f"(metadata {key.decode()})"] = hide(_readable(raw.decode()))
    for name in table.schema.names:
        found[name] = hide("\n".join(repr(value) for value in table.column(name).to_pylist()))
    return found


def of_text(path, hide):
    return {"text": hide(path.read_text(encoding="utf-8"))}


def of_page(path, hide):
    """The page's text by section, one line per block; drawings, scripts and styles are left out."""
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return {name: hide("\n".join(lines)) for name, lines in page.sections.items() if lines}


def _readable(text):
    try:
        return lines_of(json.loads(text))
    except ValueError:
        return text


class Hide:
    """Replaces what differs between two machines: the folder that it runs in, the checkout, the commit."""

    def __init__(self, replaced, patterns=None):
        self.replaced = dict(sorted(replaced.items(), key=lambda pair: -len(pair[0])))
        self.patterns = patterns or {}

    def __call__(self, text):
        for found, name in self.replaced.items():
            text = text.replace(found, name)
        for pattern, name in self.patterns.items():
            text = re.sub(pattern, name, text)
        return text


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections = {"(head)": []}
        self._section, self._skipping, self._words = "(head)", 0, ""

    def handle_starttag(self, tag, attrs):
        if tag in SKIPPED:
            self._skipping += 1
        elif tag == "section":
            self._end_line()
            self._section = dict(attrs).get("aria-labelledby") or f"section {len(self.sections)}"
            self.sections.setdefault(self._section, [])
        elif tag not in INLINE:
            self._end_line()

    def handle_endtag(self, tag):
        if tag in SKIPPED:
            self._skipping -= 1
        elif tag not in INLINE:
            self._end_line()
        if tag == "section":
            self._section = "(head)"

    def handle_data(self, data):
        if not self._skipping:
            self._words += data

    def close(self):
        super().close()
        self._end_line()

    def _end_line(self):
        if words := " ".join(self._words.split()):
            self.sections[self._section].append(words)
        self._words = ""
