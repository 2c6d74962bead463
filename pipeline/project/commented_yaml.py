"""Changes values in YAML text and keeps the comments of its writer."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

_LINE = 120


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """The YAML text of a mapping, made equal to `values`.

    What stays keeps its comments and its place; a new key comes last in its mapping.
    """
    from ruamel.yaml import YAML

    yaml = YAML()  # keeps comments
    yaml.width = _LINE
    yaml.representer.add_representer(type(None), _null)
    tree = yaml.load(text)
    _lay(tree, values)
    out = StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _null(representer: Any, value: None) -> Any:
    """Write `null`: ruamel would write nothing, which changes lines that nobody changed."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _lay(tree: Any, values: Mapping[str, Any]) -> None:
    """Make `tree`, a mapping with comments, equal to `values`."""
    for key in [key for key in tree if key not in values]:
        del tree[key]
    for key, value in values.items():
        if key not in tree:
            _append(tree, key, value)
        # An emptied block would be written as `{}` on a line of its own, which is not valid.
        elif value and isinstance(value, Mapping) and isinstance(tree[key], Mapping):
            _lay(tree[key], value)
        elif tree[key] != value:
            tree[key] = _plain(value)


def _append(tree: Any, key: str, value: Any) -> None:
    """Add a key to a mapping. Comments below the mapping, such as those of the next section, stay there."""
    below = _cut_below(tree)
    tree[key] = _plain(value)
    if below:
        place, last = _last(tree)
        comments = place.ca.items.setdefault(last, [None] * 4)
        comments[_slot(place)] = below


def _cut_below(tree: Any) -> Any:
    """Cut off the comment below the last line of a mapping, which ruamel keeps with that line's own."""
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    if not tree:
        return None
    place, last = _last(tree)
    token = (place.ca.items.get(last) or [None] * 4)[_slot(place)]
    if token is None:
        return None
    own, line_end, below = token.value.partition("\n")
    if not below:
        return None
    token.value = own + line_end
    return CommentToken(f"\n{below}", CommentMark(0), None)


def _last(tree: Any) -> tuple[Any, Any]:
    """The innermost block that ends where `tree` does, and its last key or place."""
    last = len(tree) - 1 if isinstance(tree, list) else [*tree][-1]
    value: Any = tree[last]
    if isinstance(value, Mapping | list) and value and not _is_on_one_line(value):
        return _last(value)
    return tree, last


def _is_on_one_line(value: Any) -> bool:
    return bool(value.fa.flow_style())


def _slot(place: Any) -> int:
    """Where ruamel keeps the comment behind a value."""
    return 0 if isinstance(place, list) else 2


def _plain(value: Any) -> Any:
    """A value as it is written: a list of numbers stays on its line, others may need quotes there."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq

    if isinstance(value, Mapping):
        return CommentedMap({key: _plain(each) for key, each in value.items()})
    if not isinstance(value, list):
        return value
    found = CommentedSeq(map(_plain, value))
    if not any(isinstance(each, str) for each in value):
        found.fa.set_flow_style()
    return found
