"""Arbitrary bytes as input of `headstart predict`."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from pipeline.inference.predicted_lines import predict_lines
from tests.fuzz.corpora import texts
from tests.fuzz.damage import damaged, refused


@st.composite
def inputs(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(texts, max_size=12))
    content = draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))
    mark = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    encoded = mark + content.encode()
    return draw(st.one_of(st.just(encoded), damaged(encoded), st.binary(max_size=60)))


def check_lines(content: bytes, model: Path, folder: Path) -> bool:
    """Check for one answer per line, in order, with its text, or a refusal that names the file."""
    file = folder / "input.txt"
    file.write_bytes(content)
    no, answers = refused(lambda: list(predict_lines([], file, [model], "fp32", "json_with_text")), file.name)
    lines = content.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    lines[:1] = [line.removeprefix(b"\xef\xbb\xbf") for line in lines[:1]]
    if no:
        assert "is not UTF-8" in no
        assert any(not _decodes(line) for line in lines), "refused, although it is UTF-8"
        return True
    assert all("\n" not in answer for answer in answers)
    found = [json.loads(answer) for answer in answers]
    assert [answer["text"] for answer in found] == [line.decode().removesuffix("\r") for line in lines]
    for answer in found:
        if not answer["text"].strip():
            assert answer["label"] is answer["probabilities"] is None
            continue
        assert abs(sum(answer["probabilities"].values()) - 1) < 1e-6
        assert answer["label"] in answer["probabilities"]
    return False


def _decodes(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
