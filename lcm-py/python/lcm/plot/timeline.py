"""Draws timelines: lanes of spans, a lane for each worker, and a fleet over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lcm import History
from lcm.palette import STATUSES, color, ink
from lcm.plot import simulated
from lcm.plot.span import Span
from lcm.plot.style import INK, SOFT, STYLE, key

__all__ = ["Diary", "Span", "bands", "events", "fleet", "lanes", "moments", "stack", "timeline"]

LETTERS_PER_INCH = 9.5
LINE = 12
DOTS = (0, (2, 2))


class Diary:
    """Records the values of lanes over time, in minutes since the start.

    >>> from datetime import UTC, datetime, timedelta
    >>> began = datetime(2026, 2, 6, 8, tzinfo=UTC)
    >>> diary = Diary(began)
    >>> for minute, status in enumerate(["pending", "provisioning", "provisioning", "running"]):
    ...     _ = diary.note(began + timedelta(minutes=minute), worker=status)
    >>> diary.lane("worker")[1]
    Span(start=1.0, end=3.0, word='provisioning')
    """

    def __init__(self, began: datetime) -> None:
        self._began = began
        self._last = 0.0
        self._notes: dict[str, list[tuple[float, str]]] = {}

    def note(self, now: datetime, **words: str) -> float:
        """Record the current value of each lane and return the time in minutes."""
        self._last = self.minutes(now)
        for lane, word in words.items():
            notes = self._notes.setdefault(lane, [])
            if not notes or notes[-1][1] != word:
                notes.append((self._last, str(word)))
        return self._last

    def minutes(self, moment: datetime) -> float:
        """Return the minutes since the start."""
        return (moment - self._began).total_seconds() / 60

    def lane(self, name: str) -> list[Span]:
        """Return the spans of one lane."""
        notes = self._notes.get(name, [])
        ends = [start for start, _ in notes[1:]] + [self._last]
        return [Span(start, end, word) for (start, word), end in zip(notes, ends, strict=True)]

    def words(self, name: str) -> list[str]:
        """Return the values of one lane in order, without the times."""
        return [word for _, word in self._notes.get(name, [])]

    def lanes(self) -> dict[str, list[Span]]:
        """Return all lanes in the order of their first value."""
        return {name: self.lane(name) for name in self._notes}


def lanes(axes: Axes, shown: Mapping[str, Iterable[Span]], colors: Mapping[str, str] | None = None) -> None:
    """Draw each lane as a row of spans, labeled where the text fits. ``colors`` override the palette."""
    rows = {name: list(spans) for name, spans in shown.items()}
    end = max(span.end for spans in rows.values() for span in spans)
    figure = axes.get_figure(root=True)
    letters = (figure.get_figwidth() if figure else 0) * LETTERS_PER_INCH
    for row, spans in enumerate(rows.values()):
        for start, until, word in spans:
            shade = (colors or {}).get(word, color(word))
            axes.barh(row, until - start, left=start, height=0.62, color=shade, edgecolor="white", linewidth=1)
            if (until - start) / end * letters > len(word) + 1:
                middle = (start + until) / 2
                axes.text(middle, row, word, ha="center", va="center_baseline", color=ink(shade), fontsize=8.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, end), xlabel="minutes")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)


def events(axes: Axes, name: str, marked: Iterable[tuple[float, str]]) -> None:
    """Add a lane of single events below the others."""
    rows = [label.get_text() for label in axes.get_yticklabels()]
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    for time, text in marked:
        axes.plot(time, len(rows) - 0.1, "^", color=INK, markersize=5, clip_on=False)
        axes.text(time, len(rows) + 0.14, text, ha=_lean(axes, time), va="top", fontsize=8, bbox=paper, zorder=4)
    axes.set_yticks(range(len(rows) + 1), [*rows, name])
    axes.set_ylim(len(rows) + 0.6, -0.6)


def moments(axes: Axes, marked: Mapping[float, str], *, lift: float = 3) -> None:
    """Mark times with a thin line and a label above, alternately on two levels so that labels do not overlap."""
    for number, (time, text) in enumerate(marked.items()):
        axes.axvline(time, color=SOFT, linewidth=0.9, linestyle=DOTS, zorder=3)
        _above(axes, time, text, lift + LINE * (number % 2))


def bands(axes: Axes, marked: Mapping[str, tuple[float, float]]) -> None:
    """Mark periods of faults with a bar and a label above the plot."""
    top = axes.get_xaxis_transform()
    for text, (start, end) in marked.items():
        axes.plot([start, end], [1.015, 1.015], color=color("failed"), linewidth=4, transform=top, clip_on=False)
        for time in (start, end):
            axes.axvline(time, color=SOFT, linewidth=0.9, linestyle=DOTS, zorder=3)
        _above(axes, (start + end) / 2, text, lift=7)


def _above(axes: Axes, time: float, text: str, lift: float) -> None:
    axes.annotate(
        text,
        (time, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, lift),
        textcoords="offset points",
        ha=_lean(axes, time),
        va="bottom",
        fontsize=8.5,
        color=SOFT,
    )


def _lean(axes: Axes, time: float) -> str:
    """Center a label over its time, unless it would exceed the left edge."""
    start, end = axes.get_xlim()
    return "center" if time - start > (end - start) / 20 else "left"


def stack(axes: Axes, seen: Iterable[tuple[float, Counter[str]]]) -> list[str]:
    """Draw the number of workers per status, stacked over time, and return the statuses that occurred."""
    times, counts = zip(*seen, strict=True)
    # Running workers are the majority and form the base of the stack.
    ordered = sorted(STATUSES, key=lambda status: status != "running")
    words = [status for status in ordered if any(count[status] for count in counts)]
    heights = [[count[status] for count in counts] for status in words]
    axes.stackplot(times, heights, colors=[color(status) for status in words], step="post")
    axes.set(xlim=(times[0], times[-1]), xlabel="minutes", ylabel="workers")
    axes.set_ylim(0, max(count.total() for count in counts))
    return words


def timeline(
    diary: Diary | Mapping[str, Iterable[Span]] | History,
    *,
    title: str = "",
    marks: Mapping[float, str] | None = None,
    calls: Iterable[tuple[float, str]] = (),
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Draw a lane for each worker, or for each other thing that changed, over time.

    ``marks`` are labels at times, ``calls`` single events in a lane of their own, and ``colors`` those of other words
    than statuses. All times are in minutes; those of a simulation are in hours.
    """
    is_simulated = isinstance(diary, History)
    given = (
        simulated.spans(diary) if isinstance(diary, History) else diary.lanes() if isinstance(diary, Diary) else diary
    )
    shown = {name: list(spans) for name, spans in given.items()}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(13, 1.6 + 0.34 * len(shown) + (0.6 if calls else 0) + 0.3 * bool(marks)))
        lanes(axes, shown, colors)
        if is_simulated:
            axes.set_xlabel("hours")
        if calls := list(calls):
            events(axes, "EC2 calls", calls)
        moments(axes, marks or {})
        axes.set_title(title, pad=34 if marks else 10)
        words = {span.word for spans in shown.values() for span in spans}
        known = {word: shade for word, shade in (STATUSES | dict(colors or {})).items() if word in words}
        key(figure, known, columns=10)
    return figure


def fleet(
    seen: Iterable[tuple[float, Counter[str]]] | History,
    *,
    workers: Mapping[str, Iterable[Span]] | None = None,
    controllers: Mapping[str, Iterable[Span]] | None = None,
    title: str = "",
    marks: Mapping[float, str] | None = None,
    faults: Mapping[str, tuple[float, float]] | None = None,
) -> Figure:
    """Draw the number of workers by status over time, below it a lane for each worker and each controller.

    ``seen`` holds the counts by status at each time, in minutes. ``marks`` are labels at times, and ``faults`` periods
    with their labels. Controllers are drawn as ``leads``, ``standby`` or ``dead``. ``seen`` is also a simulation; all
    times are then in hours.
    """
    unit = "hours" if isinstance(seen, History) else "minutes"
    seen = simulated.counts(seen) if isinstance(seen, History) else seen
    parts = [part for part in (workers, controllers) if part is not None]
    heights = [3.2, *(0.5 + 0.24 * len(part) for part in parts)]
    roles = {"leads": color("running"), "standby": color("pending"), "dead": color("terminated")}
    with plt.rc_context(STYLE):
        size = (13, 1.9 + sum(heights))
        figure, grid = plt.subplots(len(heights), 1, figsize=size, sharex=True, height_ratios=heights, squeeze=False)
        top, *below = grid[:, 0]
        words = stack(top, seen)
        end = top.get_xlim()
        bands(top, faults or {})
        moments(top, marks or {}, lift=20 if faults else 3)
        top.set_title(title, pad=48 if faults and marks else 34 if faults or marks else 10)
        for axes, part in zip(below, parts, strict=True):
            lanes(axes, part, roles if part is controllers else None)
            axes.tick_params(axis="y", labelsize=8)
            for start, stop in (faults or {}).values():
                axes.axvspan(start, stop, color=color("failed"), alpha=0.12, linewidth=0, zorder=0)
        for axes in (top, *below[:-1]):
            axes.set_xlabel("")
        (below or [top])[-1].set(xlabel=unit, xlim=end)
        key(figure, {word: STATUSES[word] for word in words} | (roles if controllers else {}), columns=9)
    return figure
