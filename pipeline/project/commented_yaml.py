"""Changes values in YAML text and keeps the comments of its writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

_LINE = 120


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """The YAML text of a mapping, made equal to `values`.

    What stays keeps its comments, its place and its style; a new key comes last in its mapping.
    """
    from ruamel.yaml import YAML

    yaml = YAML()  # keeps comments
    yaml.preserve_quotes = True
    yaml.width = _LINE
    yaml.representer.add_representer(type(None), _null)
    tree = yaml.load(text)
    offset = next(_dash_indents(tree), 0)
    yaml.indent(sequence=offset + 2, offset=offset)
    _lay(tree, values)
    out = StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _dash_indents(tree: Any) -> Iterator[int]:
    """By how much the dashes of each list stand behind its key."""
    for value in tree.values():
        if isinstance(value, Mapping) and value and not _is_on_one_line(value):
            yield from _dash_indents(value)
        elif isinstance(value, list) and value and not _is_on_one_line(value):
            yield max(0, _column(value) - _column(tree))


def _column(block: Any) -> int:
    return int(block.lc.col)


def _null(representer: Any, value: None) -> Any:
    """Write `null`: ruamel would write nothing, which changes lines that nobody changed."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _lay(tree: Any, values: Mapping[str, Any]) -> None:
    """Make `tree`, a mapping with comments, equal to `values`."""
    for key in [key for key in tree if key not in values]:
        _remove(tree, key)
    for key, value in values.items():
        # An emptied block would be written as `{}` on a line of its own, which is not valid.
        if value and isinstance(value, Mapping) and isinstance(tree.get(key), Mapping):
            _lay(tree[key], value)
        elif key not in tree or tree[key] != value:
            _put(tree, key, value)


# ruamel keeps the comment above a key, such as the heading of the next section, with the line before it. It
# has to stay there if another line takes the place of that one.


def _put(tree: Any, key: str, value: Any) -> None:
    """Set a key of a mapping; a new one comes last."""
    below = _cut_below(*_last(tree, key if key in tree else [*tree][-1])) if tree else ""
    is_block_list = isinstance(tree.get(key), list) and tree[key] and not _is_on_one_line(tree[key])
    tree[key] = _styled(value, in_flow=_is_on_one_line(tree), list_in_flow=not is_block_list)
    _add_below(*_last(tree, key), below)


def _remove(tree: Any, key: str) -> None:
    keys = [*tree]
    below = _cut_below(*_last(tree, key))
    del tree[key]
    if keys[0] != key:
        _add_below(*_last(tree, keys[keys.index(key) - 1]), below)


def _cut_below(place: Any, last: Any) -> str:
    """Cut off the comment below a line, and return it."""
    token = (place.ca.items.get(last) or [None] * 4)[_slot(place)]
    if token is None:
        return ""
    own, line_end, below = token.value.partition("\n")
    token.value = own + line_end
    return str(below)


def _add_below(place: Any, last: Any, below: str) -> None:
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    comments = place.ca.items.setdefault(last, [None] * 4)
    if below and comments[_slot(place)] is None:
        comments[_slot(place)] = CommentToken(f"\n{below}", CommentMark(0), None)
    elif below:
        comments[_slot(place)].value += below


def _last(place: Any, key: Any) -> tuple[Any, Any]:
    """The innermost block that ends with the value of a key, and its last key or index."""
    value: Any = place[key]
    if isinstance(value, Mapping | list) and value and not _is_on_one_line(value):
        return _last(value, len(value) - 1 if isinstance(value, list) else [*value][-1])
    return place, key


def _is_on_one_line(value: Any) -> bool:
    return bool(value.fa.flow_style())


def _slot(place: Any) -> int:
    """Where ruamel keeps the comment behind a value."""
    return 0 if isinstance(place, list) else 2


def _styled(value: Any, *, in_flow: bool, list_in_flow: bool = True) -> Any:
    """A value as it is written. On one line, text with a colon has quotes, which DVC's parser needs there."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return CommentedMap({key: _styled(item, in_flow=in_flow) for key, item in value.items()})
    if isinstance(value, list):
        in_flow |= list_in_flow
        items = CommentedSeq(_styled(item, in_flow=in_flow) for item in value)
        if in_flow:
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and in_flow and ":" in value:
        return DoubleQuotedScalarString(value)
    return value
