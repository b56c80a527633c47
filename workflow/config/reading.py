"""Reads a configuration from YAML files and command-line values, and explains its errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from common.errors import UserError
from common.messages import did_you_mean, print_message, short_repr, yaml_repr
from common.redaction import HIDDEN, is_secret_name, without_secrets
from trainers.reward_settings import KINDS_OF_REWARD
from trainers.section import CURRENCY_PATTERN, FUNCTION_PATTERN, NAME_PATTERN
from workflow.config.model import SEEDS_LISTED, SEEDS_UNTIL, Config

# The tags of unions, which are no keys, and the sections that they stand for.
_TAGS = {**KINDS_OF_REWARD, SEEDS_UNTIL: "Until", SEEDS_LISTED: ""}
NO_LONGER_USED = {
    "report.explain": "the report compares replays with each other, below the trainings' verdicts (docs/replay.md)",
    "report.cpu_memory_gb_s": "the efficiency is of GPUs with a data sheet (docs/roofline.md)",
}
"""Keys of earlier releases (section.key), and what to use instead. They are named once and ignored."""


def parse_overrides(overrides: Any, where: str = "") -> Any:
    """Parses the text values of a command line as YAML."""
    if isinstance(overrides, Mapping):
        return {
            key: parse_overrides(value, f"{where}.{key}" if where else str(key)) for key, value in overrides.items()
        }
    if isinstance(overrides, list):
        return [parse_overrides(value, f"{where}[{index}]") for index, value in enumerate(overrides)]
    if not isinstance(overrides, str) or not overrides:
        return overrides
    try:
        return yaml.safe_load(overrides)
    # ValueError: a date such as 2020-13-45.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(
            f"the value of {where or 'an override'} in --config is not YAML (got {short_repr(overrides)}): "
            f"{_yaml_problem(error)}; to give text, add quotes, as in \"'...'\", or use a file with --configfile"
        ) from None


class _Loader(yaml.SafeLoader):
    """Rejects equal keys of a mapping: PyYAML keeps the last, and would lose the arm or the seeds of the first one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line = key.start_mark.line + 1
            if first := lines.get((key.tag, key.value)):
                problem = f"the key {key.value!r} is given twice, in lines {first} and {line}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.tag, key.value] = line
        return node


def read_yaml(file: Path) -> dict[str, Any]:
    """Reads a configuration file; UserError if it is unreadable, is no mapping, or has a key twice."""
    try:
        raw = yaml.load(_text(file), Loader=_Loader)
    # ValueError: a date such as 2020-13-45.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is not YAML: {_yaml_problem(error)}; correct it there") from None
    if not isinstance(raw, dict):
        got = "nothing" if raw is None else "a list" if isinstance(raw, list) else "a single value"
        raise UserError(f"{file} must be a mapping of keys to values (got {got}); config.yaml is an example")
    return raw


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file} is not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); "
            "give a YAML file, saved as UTF-8"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{file} does not exist (looked in {Path.cwd()}); give the path of a YAML file") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder; give the path of a YAML file") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}; give a YAML file, such as config.yaml") from None


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return f"{what} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return " ".join(str(error).split())


def without_old_keys(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration without the keys that are no longer used; each is named in one line."""
    for path, instead in NO_LONGER_USED.items():
        section, key = path.split(".")
        written = raw.get(section)
        if isinstance(written, Mapping) and key in written:
            print_message(f"{path} is no longer used: {instead}")
            raw = {**raw, section: {name: value for name, value in written.items() if name != key}}
    return raw


def parse_config(raw: Mapping[str, Any]) -> Config:
    """Validates a configuration from YAML; UserError lists all its errors."""
    raw = without_old_keys(raw)
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors(include_url=False)]
        problems = [problem for problem in problems if not _is_in_repeated_arm(problem, raw)]
        lines = [without_secrets(_explain(problem)) for problem in problems if not _is_consequence(problem, problems)]
        raise UserError("the configuration has errors:\n" + "\n".join(f"  - {line}" for line in lines)) from None


def _is_in_repeated_arm(problem: dict[str, Any], raw: Mapping[str, Any]) -> bool:
    """True if the problem is in an arm with `same_as` and is already reported for the original arm."""
    loc: tuple[Any, ...] = problem["loc"]
    arms = raw.get("arms")
    if loc[:1] != ("arms",) or len(loc) < 2 or not isinstance(arms, Mapping):
        return False
    arm = arms.get(loc[1])
    return isinstance(arm, Mapping) and arm.get("same_as") is not None and loc[2:3] not in (("same_as",), ("import",))


def _is_consequence(problem: dict[str, Any], problems: list[dict[str, Any]]) -> bool:
    """True if a list is too short only because its items have problems, which are reported."""
    loc = problem["loc"]
    return problem["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in problems
    )


_MUST_BE = {
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "string_type": "text",
    "finite_number": "a finite number",
}

_PATTERNS = {
    NAME_PATTERN: "may contain letters (A-Z, a-z), digits, '_', '.' and single '-'",
    FUNCTION_PATTERN: "must be the name of a Python function",
    CURRENCY_PATTERN: "must be a currency's three capital letters, such as USD",
}


def _explain(problem: dict[str, Any]) -> str:
    keys = [str(part) for part in problem["loc"] if part not in ("[key]", *_TAGS)]
    where = ".".join(keys) or "the configuration"
    kind, context = problem["type"], problem.get("ctx", {})
    got = HIDDEN if is_secret_name(".".join(keys[-3:])) else problem["input"]
    if kind == "extra_forbidden":
        known = _known_keys(problem["loc"][:-1])
        key = str(problem["loc"][-1])
        return f"{where} is not a known key{did_you_mean(key, known)}. Allowed here: {', '.join(known)}"
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        message = str(context["error"])
        return f"{where}: {message}" if problem["loc"] else message
    if kind == "string_pattern_mismatch":
        return f"{where} {_PATTERNS[context['pattern']]} (got {short_repr(got)})"
    if kind == "too_short":
        return f"{where}: must have at least {context['min_length']} entry (got {short_repr(got)})"
    if kind == "string_too_long":
        return (
            f"{where}: must have at most {context['max_length']} characters (got {len(problem['input'])}); shorten it"
        )
    if kind in _MUST_BE:
        quotable = kind == "string_type" and got is not None and not isinstance(got, list | tuple | Mapping)
        return f"{where}: must be {_MUST_BE[kind]} (got {yaml_repr(got)}){'; quote it' if quotable else ''}"
    message = problem["msg"].replace("Input should be", "must be")
    return f"{where}: {message[0].lower() + message[1:]} (got {short_repr(got)})"


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """The configuration's allowed keys at a location."""
    schema = Config.model_json_schema()
    at = schema
    for part in loc:
        if part in _TAGS:
            at = schema["$defs"][_TAGS[str(part)]]
            continue
        of_any = [*at.get("patternProperties", {}).values(), at.get("items"), at.get("additionalProperties")]
        inner = next(each for each in (at.get("properties", {}).get(part), *of_any) if each)
        references = [each["$ref"] for each in (inner, *inner.get("anyOf", ())) if "$ref" in each]
        at = schema["$defs"][references[0].rpartition("/")[2]] if references else inner
    return list(at["properties"])
