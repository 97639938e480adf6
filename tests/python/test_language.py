"""Comments, docstrings and pages follow the word rules of STYLE.md."""

from __future__ import annotations

import json
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VAGUE = re.compile(r"\b(some|no|every|any)(body|one)\b|\b(who|what)(so)?ever\b(?!`)", re.IGNORECASE)
NOT_VAGUE = re.compile(r"\bno one\b|\b(some|any|every) one\b", re.IGNORECASE)
NOMINAL = re.compile(r"(?:^|[.:;] )(What|Who|Whose|Whom)\b(?![^.]*\?)")
BRITISH = re.compile(
    r"\b(licences?|behaviours?|colours?|neighbours?|honours?|favours?|catalogues?|cancell(?:ed|ing)"
    r"|(?:serial|util|recogn|normal|optim|initial|organ|summar)is(?:e|es|ed|ing|ation)\w*)\b",
    re.IGNORECASE,
)
# Files that quote the rules, and the generated enums, which repeat the stable sentences of the reason codes.
EXEMPT = {"STYLE.md", "tests/python/test_language.py", "lcm-py/python/lcm/enums.py"}


def tracked(suffix: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", f"*{suffix}"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name not in EXEMPT]
    return [file for file in files if file.exists()]


def rust_comments(file: Path) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        found = re.match(r"\s*//[/!]?(?: (.*))?$", line)
        if found is None:
            in_code = False
            continue
        text = found[1] or ""
        if text.startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, text


def python_comments(file: Path) -> Iterator[tuple[int, str]]:
    with file.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            is_docstring = token.type == tokenize.STRING and token.line.lstrip().startswith('"""')
            if token.type == tokenize.COMMENT or is_docstring:
                for offset, text in enumerate(token.string.strip('"#').splitlines()):
                    yield token.start[0] + offset, text.strip()


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a Markdown text outside of code blocks."""
    in_code = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def markdown_lines(file: Path) -> Iterator[tuple[int, str]]:
    return prose(file.read_text(encoding="utf-8").splitlines())


def notebook_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the text of the Markdown cells and the comments of the code cells, with the number of the cell."""
    for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"], 1):
        lines = "".join(cell["source"]).splitlines()
        if cell["cell_type"] == "markdown":
            yield from ((number, text) for _, text in prose(lines))
        else:
            yield from ((number, line.partition("# ")[2]) for line in lines if "# " in line)


READERS: dict[str, Callable[[Path], Iterator[tuple[int, str]]]] = {
    ".rs": rust_comments,
    ".py": python_comments,
    ".md": markdown_lines,
    ".ipynb": notebook_lines,
}


@pytest.mark.parametrize("suffix", READERS)
def test_comments_use_plain_field_words(suffix: str) -> None:
    files = tracked(suffix)
    assert files
    problems = []
    for file in files:
        for number, text in READERS[suffix](file):
            vague = VAGUE.search(NOT_VAGUE.sub("", text))
            if vague or NOMINAL.search(text) or BRITISH.search(text):
                problems.append(f"{file.relative_to(ROOT)}:{number}: {text}")
    assert not problems, f"{len(problems)} lines, see STYLE.md:\n" + "\n".join(problems)


def test_doc_comments_say_more_than_two_words() -> None:
    """At most 2 % of the doc comments are shorter, as in kube-rs, object_store and quinn-proto."""
    docs = []
    for file in tracked(".rs"):
        run: list[str] = []
        for line in [*file.read_text(encoding="utf-8").splitlines(), ""]:
            found = re.match(r"\s*//[/!](?: (.*))?$", line)
            if found:
                run.append(found[1] or "")
            elif run:
                docs.append((file, " ".join(run)))
                run = []
    short = [f"{file.relative_to(ROOT)}: {text}" for file, text in docs if len(text.split()) <= 2]
    assert len(short) <= 0.02 * len(docs), f"{len(short)} of {len(docs)}:\n" + "\n".join(short)
