"""What pydantic found wrong, said in the words of a ladder file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from tpu_perf.config.problems import Path, did_you_mean

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def data_path(error: ErrorDetails, data: Any) -> Path:
    """The error's place in the document: pydantic's, without the tags of unions."""
    path: list[str | int] = []
    node = data
    for part in error["loc"]:
        if isinstance(node, Mapping):
            if part in node or part == error["loc"][-1]:
                path.append(part)
                node = node.get(part)
            continue
        if isinstance(node, list) and isinstance(part, int) and part < len(node):
            path.append(part)
            node = node[part]
    return tuple(path)


def explain(error: ErrorDetails, schema: Mapping[str, Any]) -> str:
    """One sentence for one pydantic error; `schema` is the JSON schema it was checked by."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"unknown key{did_you_mean(key, known_keys(schema, error['loc'][:-1]))}"
    if kind == "missing":
        return "this key is required"
    if kind in ("literal_error", "union_tag_invalid"):
        options = re.findall(
            r"'([^']*)'", context.get("expected", context.get("expected_tags", ""))
        )
        given = context.get("tag", given)
        return f"{_show(given)} is not one of the choices{did_you_mean(str(given), options)}"
    if kind == "union_tag_not_found":
        return f"the key {context.get('discriminator', '')} is required"
    if kind in _TYPES:
        return f"should be {_TYPES[kind]}, not {_show(given)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"should be {words} {context[bound]}, not {_show(given)}"
    if kind == "string_pattern_mismatch":
        return f"{_show(given)} may only hold letters, digits, '_', '-' and '.'"
    if kind == "mistake":
        return str(error["msg"])
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {_show(given)}"


def known_keys(schema: Mapping[str, Any], location: tuple[str | int, ...]) -> list[str]:
    """Keys that may stand at this place of the document, by the JSON schema."""
    nodes = [dict(schema)]
    for part in location:
        nodes = [below for node in _alternatives(nodes, schema) for below in _below(node, part)]
    return sorted(
        {key for node in _alternatives(nodes, schema) for key in node.get("properties", {})}
    )


def _below(node: Mapping[str, Any], part: str | int) -> list[dict[str, Any]]:
    if isinstance(part, int):
        return [node["items"]] if isinstance(node.get("items"), dict) else []
    if part in node.get("properties", {}):
        return [node["properties"][part]]
    # A union's tag: keep only the alternative whose discriminating key has this value.
    tags = [value.get("const") for value in node.get("properties", {}).values()]
    return [dict(node)] if part in tags else []


def _alternatives(nodes: list[dict[str, Any]], root: Mapping[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for node in nodes:
        if "$ref" in node:
            out += _alternatives([root["$defs"][node["$ref"].rsplit("/", 1)[-1]]], root)
            continue
        out.append(node)
        for word in ("anyOf", "oneOf", "allOf"):
            out += _alternatives(node.get(word, []), root)
    return out


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    names: dict[type, Callable[[Any], str]] = {
        dict: lambda _: "a mapping",
        list: lambda _: "a list",
        bool: lambda flag: str(flag).lower(),
    }
    return names.get(type(value), repr)(value)
