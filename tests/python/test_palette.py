"""Colors are distinguishable and readable, with color blindness too."""

from __future__ import annotations

from itertools import combinations

import lcm
import pytest
from lcm.palette import STATUSES, color, ink

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]

# Linear light as seen without one kind of cone (Machado, Oliveira and Fernandes, 2009).
EYES: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
# From linear light to OKLab (Ottosson, 2020), where distance is the perceived difference.
CONES: Matrix = ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300))
OKLAB: Matrix = ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
LUMINANCE = (0.2126, 0.7152, 0.0722)


def times(matrix: Matrix, vector: Triple) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def light(color: str) -> Triple:
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def seen(color: str, eyes: Matrix) -> Triple:
    red, green, blue = (max(0.0, min(1.0, part)) for part in times(eyes, light(color)))
    long, middle, short = (part ** (1 / 3) for part in times(CONES, (red, green, blue)))
    return times(OKLAB, (long, middle, short))


def brightness(color: str) -> float:
    return sum(weight * part for weight, part in zip(LUMINANCE, light(color), strict=True))


@pytest.mark.parametrize("eyes", EYES)
def test_any_two_statuses_have_distinct_colors(eyes: str) -> None:
    for one, other in combinations(STATUSES, 2):
        pairs = zip(seen(STATUSES[one], EYES[eyes]), seen(STATUSES[other], EYES[eyes]), strict=True)
        distance = sum((a - b) ** 2 for a, b in pairs) ** 0.5
        assert distance > 0.1, f"{one} and {other} look alike: {distance:.3f}"


@pytest.mark.parametrize("status", STATUSES)
def test_text_is_readable_on_every_color(status: str) -> None:
    shade = STATUSES[status]
    dark, bright = sorted((brightness(shade), brightness(ink(shade))))
    assert (bright + 0.05) / (dark + 0.05) >= 4.5, "the contrast that WCAG requires for text"


def test_every_word_has_a_color() -> None:
    assert list(STATUSES) == list(lcm.WorkerStatus)
    words = [*lcm.Outcome, *lcm.Conclusion]
    assert all(color(word) in STATUSES.values() for word in words)
    assert len({color(word) for word in lcm.Outcome}) == len(lcm.Outcome)
    assert len({color(word) for word in lcm.Conclusion}) == len(lcm.Conclusion)
    assert color("no such word") == STATUSES["stopped"]


def test_orphan_report_html_shows_escaped_verdicts() -> None:
    old = {"status": "running", "aws_region": "us-east-1", "created_at": "2026-01-01T00:00:00Z"}
    records = [{"id": "<b>", "ec2_instance_id": id, **old} for id in ("i-1", "i-2")]
    shown = [lcm.Instance("running", id="i-3")]
    verified = {"i-1": lcm.ABSENT}
    report = lcm.find_orphans(records, shown, region="us-east-1", verified=verified, account_proved=True)
    html = report._repr_html_()
    assert "orphans: 1" in html and "not verified yet: i-2" in html
    assert "&lt;b&gt;" in html and "<b>&" not in html
    assert f"background:{color('orphan')}" in html and f"background:{color('unknown')}" in html
