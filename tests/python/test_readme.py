"""The Python examples of the README run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_readme_runs(example: str) -> None:
    exec(compile(example, str(README), "exec"), {})


def test_there_are_examples() -> None:
    assert EXAMPLES
