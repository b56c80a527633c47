"""Generates documentation from code: the configuration's JSON schema and reference page, and the file tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from common import contracts, findings, verdicts
from common.files import ROOT
from common.json_types import markdown_table
from workflow.config.model import Config

SCHEMA_FILE = "workflow/schemas/config.schema.json"
REFERENCE_FILE = "docs/configuration.md"
FILES_PAGE = "docs/files.md"


def config_schema() -> str:
    """The JSON schema of config.yaml, as committed."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Config.model_json_schema()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def reference_page() -> str:
    """The Markdown reference page: one table per section, with each key's type, default and meaning."""
    schema = Config.model_json_schema()
    parts = [
        "# The configuration\n",
        "<!-- Written by `make docs` from workflow/config/model.py; edit the docstrings there. -->\n",
        "An experiment is one YAML file: `config.yaml`, or another one given with `--configfile`. It describes only\n"
        "the science; cores, partitions and walltimes are in a profile. Keys that are not listed here are rejected.\n",
    ]
    sections = [("The experiment", schema), *_sections(schema)]
    for title, section in sections:
        rows = "\n".join(_rows(section))
        parts.append(f"## {title}\n{_text(section)}\n\n| key | type, default | meaning |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def files_page() -> str:
    """The page of file contracts, with new tables between `<!-- Kind -->` and `<!-- /Kind -->`."""

    def table(found: re.Match[str]) -> str:
        modules = (contracts, findings, verdicts)
        kind = next(getattr(module, found[1]) for module in modules if hasattr(module, found[1]))
        return f"<!-- {found[1]} -->\n{markdown_table(kind)}<!-- /{found[1]} -->"

    text = (ROOT / FILES_PAGE).read_text(encoding="utf-8")
    return re.sub(r"<!-- (\w+) -->\n.*?<!-- /\1 -->", table, text, flags=re.DOTALL)


def _sections(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    titles = {
        "Arm": "arms.<name>",
        "Workload": "workload",
        "Model": "workload.model",
        "Data": "workload.data",
        "Reward": "workload.rewards[]",
        "OwnReward": "workload.rewards[] with a source",
        "RewardModel": "workload.rewards[] with a model",
        "Until": "seeds with until",
        "Envs": "envs",
        "Import": "arms.<name>.import",
        "ImportedRun": "arms.<name>.import.runs[]",
        "Report": "report",
    }
    for name, title in titles.items():
        yield f"`{title}`", schema["$defs"][name]


def _rows(section: dict[str, Any]) -> Iterator[str]:
    # The first alternative of an arm has its required keys; the second is `same_as`.
    required = set(section.get("required") or section.get("anyOf", [{}])[0].get("required", ()))
    for key, field in section["properties"].items():
        default = "required" if key in required else f"`{json.dumps(field.get('default'), ensure_ascii=False)}`"
        yield f"| `{key}` | {_type(field)}, {default} | {_text(field)} |"


def _text(part: dict[str, Any]) -> str:
    return " ".join(str(part.get("description", "")).split())


def _type(field: dict[str, Any]) -> str:
    if "oneOf" in field:
        return " or ".join(map(_type, field["oneOf"]))
    if "anyOf" in field:
        # `null` is left out where it is the default, which stands beside the type.
        options = [one for one in field["anyOf"] if one.get("type") != "null" or field.get("default") is not None]
        return " or ".join(map(_type, options))
    if "enum" in field:
        return " or ".join(f"`{value}`" if value else '`""`' for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        return "section"
    kind = str(field.get("type", "any"))
    return {"array": "list", "object": "mapping"}.get(kind, kind)
