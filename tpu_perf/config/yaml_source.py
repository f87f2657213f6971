"""YAML read into plain data together with the line every value stands on."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tpu_perf.config.problems import Path, Problem, did_you_mean, raise_all
from tpu_perf.errors import ConfigError

_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Document:
    """A ladder file as plain data; `lines` and `overrides` tell where each path was written."""

    file: FilePath
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    overrides: dict[Path, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> str:
        """`file:line` of the value at `path`, or of the nearest thing that contains it."""
        for length in range(len(path), -1, -1):
            prefix = path[:length]
            if prefix in self.overrides:
                return f"--set {self.overrides[prefix]}"
            if prefix in self.lines:
                return f"{self.file}:{self.lines[prefix]}"
        return f"{self.file}:1"

    def complain(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self.place(path), path, message))


def read_document(file: FilePath) -> Document:
    """Read and parse a ladder file. Raises ConfigError, with the line where YAML knows it."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file{_nearby(file)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: this is a directory, not a ladder file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    return parse_document(file, text)


def parse_document(file: FilePath, text: str) -> Document:
    """Parse the text of a ladder file; `file` is only named in messages."""
    yaml = _yaml()
    try:
        root = yaml.compose(StringIO(text))
    except MarkedYAMLError as error:
        raise ConfigError(f"{file}:{_error_line(error)}: not valid YAML: {_cause(error)}") from None
    except YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {error}") from None
    if root is None or (isinstance(root, ScalarNode) and not root.value):
        raise ConfigError(f"{file}:1: the file is empty", hint="see ladders/quick.yaml")
    document = Document(file=file, data={})
    if not isinstance(root, MappingNode):
        raise ConfigError(
            f"{file}:{root.start_mark.line + 1}: a ladder file is a mapping of keys to values, "
            "such as `name: quick`"
        )
    document.data = _Reader(yaml, document).mapping(root, ())
    return document


def parse_value(text: str) -> Any:
    """The YAML value of one `--set` argument. Raises ConfigError."""
    yaml = _yaml()
    try:
        node = yaml.compose(StringIO(text))
        if node is None:
            return None
        document = Document(file=FilePath("--set"), data={})
        value = _Reader(yaml, document).value(node, ())
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{text!r} is not valid YAML: {_cause(error)}") from None
    raise_all(document.problems)
    return value


class _Reader:
    """Turns composed nodes into dicts, lists and scalars, noting lines and repeated keys."""

    def __init__(self, yaml: YAML, document: Document) -> None:
        self._construct = yaml.constructor.construct_object
        self._document = document
        self._open: set[int] = set()

    def value(self, node: Node, path: Path) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._open:
            self._document.complain(path, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: Node, path: Path) -> Any:
        try:
            return self._construct(node)
        except (YAMLError, ValueError) as error:
            self._document.complain(path, f"cannot be read: {_cause(error)}")
            return None

    def mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE_TAG:
                merged |= self._merged(value_node, path)
                continue
            key = self._construct(key_node) if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                self._document.problems.append(
                    Problem(f"{self._document.file}:{line}", path, "keys must be plain words")
                )
                continue
            here = (*path, key)
            if key in own:
                first = self._document.lines[here]
                self._document.problems.append(
                    Problem(
                        f"{self._document.file}:{line}",
                        here,
                        f"this key is already set on line {first}; remove one of the two",
                    )
                )
                continue
            self._document.lines[here] = line
            own[key] = self.value(value_node, here)
        return merged | own

    def _merged(self, node: Node, path: Path) -> dict[str, Any]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        out: dict[str, Any] = {}
        for source in reversed(sources):
            if isinstance(source, MappingNode):
                out |= self.mapping(source, path)
            else:
                self._document.complain(path, "`<<` must name a mapping")
        return out


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _error_line(error: MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return 1 if mark is None else int(mark.line) + 1


def _cause(error: Exception) -> str:
    parts = [getattr(error, "context", None), getattr(error, "problem", None)]
    told = ", ".join(part for part in parts if part)
    return told or (str(error).splitlines() or [type(error).__name__])[0]


def _nearby(file: FilePath) -> str:
    folder = file.parent
    names = [path.name for path in folder.glob("*.y*ml")] if folder.is_dir() else []
    if not names:
        return ""
    return did_you_mean(file.name, names)
