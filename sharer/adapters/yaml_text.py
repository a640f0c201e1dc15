"""YAML text in, located nodes out; and the one way from a policy's text to a `Policy`.

Read from the parser's events, not with `yaml.compose`: events tell tags and anchors that a composed tree has lost, a
deep text ends at a limit and not on the C stack, and nothing is ever resolved to a Python value.

What a policy has no use for is refused with its place: repeated keys, anchors and aliases, merge keys, tags, keys that
are not text, a second document, tabs, characters that cannot be seen, and more than the limits below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

import yaml

from sharer.core.errors import PolicyError, Problem
from sharer.core.policy.fields import in_text_order, shown_key
from sharer.core.policy.located import LocatedList, LocatedMapping, LocatedNode, LocatedScalar
from sharer.core.policy.model import Policy
from sharer.core.policy.reader import is_nvidia_format, read_policy
from sharer.core.policy.values import shown
from sharer.core.values import dataclass

MAX_BYTES = 2**20  # a ConfigMap holds no more
MAX_DEPTH = 32  # nested lists and mappings; a policy needs 5
MAX_NODES = 10_000  # keys and values: about 400 long rules; bounds the time and the length of a refusal

Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
FASTEST: Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be built without the C library

_BREAK = re.compile("\r\n|\n|\r")
_UNSEEN = "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
"""Compiled only for a text that has characters of which Python says that they are not printable: 3 ms of a start."""
_ODD_BLANK = "[\xa0\xad\u1680\u2000-\u200d\u202f\u205f\u2060\u3000]"  # letters to YAML; web pages and chats have them
_BLANKS = dict.fromkeys(map(ord, "\t\n\r"))
_COMMENT = re.compile(r"(?:^|[ \t])#")

_ALIAS = '* begins a YAML alias, which a policy may not have; write text that begins with * in quotes, such as "*A100*"'
_BLOCK = '> and | begin a YAML block; write text that begins with one of them in quotes, such as ">=40Gi"'
_ANCHOR = "& begins a YAML anchor, which a policy may not have; write each value out"
_TAG = "! begins a YAML tag, which a policy may not have; write the plain value"
_DEEP = f"nested more than {MAX_DEPTH} deep"
_MERGE = "<< is a YAML merge key, which a policy may not have; write the keys out"


def read_policy_text(text: str | bytes, source: str) -> Policy:
    """Read a policy in sharer's own format or the NVIDIA plugin's. The one parser of agent, CLI and chart test.

    `source` names the file or ConfigMap key in messages. Raises PolicyError with all problems in the order of the text,
    whatever the bytes are.
    """
    document, problems = locate(text, source)
    policy = None
    if document is not None:
        try:
            policy = (_read_nvidia_format if is_nvidia_format(document) else read_policy)(document, source)
        except PolicyError as error:
            told = {(problem.line, problem.column) for problem in problems}  # there YAML is already the reason
            problems += [problem for problem in error.problems if (problem.line, problem.column) not in told]
    if policy is None or problems:
        raise PolicyError(in_text_order(problems))
    return policy


def _read_nvidia_format(document: LocatedNode, source: str) -> Policy:
    from sharer.core.policy.nvidia_format import read_nvidia_format  # most nodes never do

    return read_nvidia_format(document, source)


def locate(text: str | bytes, source: str, loader: Loader = FASTEST) -> tuple[LocatedNode | None, list[Problem]]:
    """The structure of a YAML text, and everything in it that a policy may not have, in the order of the text.

    Without a structure (None) there is at least one problem.
    """
    reading = _Reading(source)
    try:
        return reading.build(yaml.parse(reading.decode(text), Loader=loader)), reading.problems
    except _Unreadable:
        pass
    except yaml.MarkedYAMLError as error:
        message, mark = _explain(error)
        reading.problem(message, *((mark.line, mark.column) if mark else ()))
    except yaml.YAMLError as error:  # no place; what is known to end here is refused by `decode` before
        reading.problem(f"cannot be read as YAML: {error}")
    return None, reading.problems


class _Unreadable(Exception):  # noqa: N818 - ends the reading after a problem was noted
    """There is no point in reading on."""


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been read yet."""

    line: int
    column: int
    is_mapping: bool
    items: list[LocatedNode] = field(default_factory=list)
    entries: dict[str, tuple[LocatedScalar, LocatedNode]] = field(default_factory=dict)
    at_key: bool = True  # a mapping's next node is a key
    key: LocatedScalar | None = None  # of the value that comes next; None: that value is dropped, its key is a problem

    def closed(self) -> LocatedNode:
        if self.is_mapping:
            return LocatedMapping(entries=tuple(self.entries.values()), line=self.line, column=self.column)
        return LocatedList(items=tuple(self.items), line=self.line, column=self.column)


class _Reading:
    """One pass over one text."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._nodes = 0
        self._open: list[_Open] = []
        self._root: LocatedNode | None = None

    def problem(self, message: str, line: int | None = None, column: int | None = None) -> None:
        """Note a problem; line and column count from 0, as YAML marks do."""
        self.problems.append(
            Problem(
                source=self.source,
                line=None if line is None else line + 1,
                column=None if column is None else column + 1,
                path=self._path(),
                message=message,
            )
        )

    def decode(self, text: str | bytes) -> str:
        """The text as characters, if it is a size and has characters that a YAML parser may be given."""
        size_bytes = len(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        if size_bytes > MAX_BYTES:
            self.problem(f"the text has {size_bytes} bytes; at most {MAX_BYTES} are read")
            raise _Unreadable
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                before, wrong = error.object[: error.start].decode(), error.object[error.start]
                self.problem(f"byte 0x{wrong:02x} is not UTF-8; save the file as UTF-8", *_place(before))
                raise _Unreadable from None
        text = text.removeprefix("\ufeff")
        is_plain = text.translate(_BLANKS).isprintable()
        if not is_plain and (unseen := re.search(_UNSEEN, text)):
            self.problem(f"the character {unseen[0]!r} cannot be seen; remove it", *_place(text[: unseen.start()]))
        for number, line in enumerate(_BREAK.split(text)):
            comment, tab = _COMMENT.search(line), line.find("\t")
            code_ends = comment.end() - 1 if comment else len(line)
            if 0 <= tab < code_ends:
                self.problem("a tab; YAML wants spaces", number, tab)
            if not is_plain and (odd := re.search(_ODD_BLANK, line[:code_ends])):
                self.problem(f"the character {odd[0]!r} is no space to YAML; type one, or none", number, odd.start())
        if self.problems:
            raise _Unreadable
        return text

    def build(self, events: Iterable[yaml.Event]) -> LocatedNode:
        """The one document's root."""
        documents = 0
        for event in events:
            line, column = _start(event)
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        self.problem("a second document begins here; a policy is one document", line, column)
                        break
                case yaml.AliasEvent():
                    self.problem(_ALIAS, line, column)
                    self._add(LocatedScalar(text="", quoted=True, line=line + 1, column=column + 1))
                case yaml.ScalarEvent():
                    self._check_properties(event)
                    self._add(
                        LocatedScalar(text=event.value, quoted=bool(event.style), line=line + 1, column=column + 1)
                    )
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    self._check_properties(event)
                    is_mapping = isinstance(event, yaml.MappingStartEvent)
                    self._open.append(_Open(line=line + 1, column=column + 1, is_mapping=is_mapping))
                    if len(self._open) > MAX_DEPTH:
                        self.problem(_DEEP, line, column)
                        raise _Unreadable
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._add(self._open.pop().closed())
                case _:
                    pass  # begin and end of the stream, end of a document
        root = self._root
        if root is None or (isinstance(root, LocatedScalar) and not root.text and not root.quoted):
            self.problem("the text is empty", 0, 0)
            raise _Unreadable
        return root

    def _add(self, node: LocatedNode) -> None:
        """Put a complete node where it belongs."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            self.problem(f"more than {MAX_NODES} keys and values", node.line - 1, node.column - 1)
            raise _Unreadable
        if not self._open:
            self._root = node
            return
        inside = self._open[-1]
        if not inside.is_mapping:
            inside.items.append(node)
        elif inside.at_key:
            inside.key = self._usable_key(node, inside)
        elif inside.key is not None:
            inside.entries[inside.key.text] = (inside.key, node)
        inside.at_key = inside.is_mapping and not inside.at_key

    def _usable_key(self, node: LocatedNode, mapping: _Open) -> LocatedScalar | None:
        mapping.key = None  # so that the path of a problem ends at the mapping
        line, column = node.line - 1, node.column - 1
        if not isinstance(node, LocatedScalar):
            self.problem("a key is a word, not a list or mapping", line, column)
        elif node.text == "<<" and not node.quoted:
            self.problem(_MERGE, line, column)
        elif node.text in mapping.entries:
            first = mapping.entries[node.text][0]
            self.problem(
                f"the key {shown(node.text)} is already there, at line {first.line}; keep one of the two", line, column
            )
        else:
            return node
        return None

    def _check_properties(self, event: yaml.NodeEvent) -> None:
        line, column = _start(event)
        if event.anchor is not None:
            self.problem(_ANCHOR, line, column)
        elif getattr(event, "tag", None) is not None:
            self.problem(_TAG, line, column)

    def _path(self) -> str:
        """Where the reading is: `rules[0].memory`."""
        path = ""
        for one in self._open:
            if not one.is_mapping:
                path += f"[{len(one.items)}]"
            elif one.key is not None:
                path += ("." if path else "") + shown_key(one.key.text)
        return path if len(path) <= 200 else f"{path[:200]}…"


def _start(event: yaml.Event) -> tuple[int, int]:
    """Line and column of an event, from 0."""
    mark = event.start_mark
    return (mark.line, mark.column) if mark else (0, 0)


def _place(before: str) -> tuple[int, int]:
    """Line and column, from 0, of what comes after this text."""
    *lines, last = _BREAK.split(before)
    return len(lines), len(last)


def in_words(error: yaml.YAMLError, source: str) -> str:
    """Why a text that is no policy is not YAML either: `pods.yaml:3:1: not valid YAML: ...`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{source}: is not YAML: it is not text in UTF-8, or has characters that YAML may not have"
    message, mark = _explain(error)
    place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    return f"{source}{place}: {message}"


def _explain(error: yaml.MarkedYAMLError) -> tuple[str, yaml.Mark | None]:
    """A parser's complaint with its place, in the words of what the operator did where it is a known slip."""
    context, complaint = error.context or "", error.problem or "unreadable"
    if context.startswith("while scanning an alias"):
        return _ALIAS, error.context_mark
    if context.startswith("while scanning a block scalar"):
        return _BLOCK, error.context_mark
    mark = error.problem_mark or error.context_mark
    if "nesting depth" in complaint:  # libyaml's own limit, where it looks far ahead
        return _DEEP, mark
    if complaint.startswith("mapping values are not allowed"):
        return (
            "not valid YAML: a ':' too many; is the indentation right? Write text that has ': ' in it in quotes",
            mark,
        )
    return f"not valid YAML: {context}{', ' if context else ''}{complaint}", mark
