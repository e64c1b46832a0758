"""Pictures of measurements, for a README: readable on a white page and on a dark one.

In: figures as records hold them. Out: an image. Needs matplotlib (`pip install quoth[plot]`), which is imported when a
picture is drawn.

G1  The background is transparent, text and lines have a middle tone, and colours are told apart on both pages, also by
    readers without red or green vision.
G2  A spread is shown where there is one.
G3  No window is ever opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoth.errors import OptionsError, QuothError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plot", "plot_acceptance", "plot_costs", "plot_workloads"]

ENDS = (".svg", ".png", ".pdf")
TEXT = "#7d8590"
GRID = "#7d859040"
BLUE, ORANGE, TEAL, PINK = "#3b8eea", "#e08a00", "#1aa179", "#d0679d"
COLOURS = (BLUE, ORANGE, TEAL, PINK)
STYLE: Any = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.transparent": True,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "grid.color": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "font.size": 10.5,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "quoth",
}


def check_plot(path: Path) -> None:
    """Find out before a measurement whether its picture can be drawn.

    Raises:
        OptionsError: The name does not end as a picture's does.
        QuothError: matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDS:
        raise OptionsError(f"the picture is `{path.name}`, expected a name that ends in one of {', '.join(ENDS)}")
    try:
        import matplotlib  # noqa: F401, PLC0415  an optional dependency
    except ImportError:
        raise QuothError("pictures need matplotlib, which is not installed: pip install 'quoth[plot]'") from None


@contextmanager
def _axes(path: Path, size: tuple[float, float]) -> Iterator[Axes]:
    """Axes to draw on; saved at the end.

    Raises:
        OSError: The file cannot be written.
    """
    check_plot(path)
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.add_subplot()
        # Without a date, the same figures give the same file.
        metadata: dict[str, Any] | None = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=160, metadata=metadata)


def plot_costs(path: Path, contexts: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """The cost of verifying k drafted tokens, with lines above which a draft does not pay.

    Args:
        path: The image, `.svg`, `.png` or `.pdf`.
        contexts: As `quoth bench verify` records them: `n_cached`, and `drafts` with `k` and `cost`.
        title: A line above.
    """
    with _axes(path, (7.2, 4.2)) as axes:
        last = max(point["k"] for context in contexts for point in context["drafts"])
        top = 0.0
        for context, colour in zip(contexts, COLOURS * len(contexts), strict=False):
            ks = [0, *(point["k"] for point in context["drafts"])]
            costs = [point["cost"] for point in context["drafts"]]
            middle = [1.0, *(cost["median"] for cost in costs)]
            axes.plot(ks, middle, "o-", color=colour, ms=4, lw=2, label=f"{context['n_cached']} tokens cached")
            low, high = [1.0, *(c["low"] for c in costs)], [1.0, *(c["high"] for c in costs)]
            axes.fill_between(ks, low, high, color=colour, alpha=0.25, lw=0)
            top = max(top, *high)
        ceiling = 1.15 * top
        for share in (1.0, 0.5, 0.25):
            # A draft of k of which a share is accepted commits share * k + 1 tokens.
            xs = [0.0, min(last, (ceiling - 1) / share)]
            ys = [1 + share * x for x in xs]
            axes.plot(xs, ys, ls=(0, (4, 3)), lw=1.2, color=TEXT)
            words = f"{100 * share:.0f} %" + (" right: break-even" if share == 0.25 else "")
            if xs[1] < 0.75 * last:  # beside the upper end, where there is room to the right
                place: dict[str, Any] = {"xy": (xs[1], ceiling), "xytext": (4, -12), "ha": "left"}
            else:
                at = 0.55 * xs[1]
                place = {"xy": (at, 1 + share * at), "xytext": (4, -14), "ha": "left"}
            axes.annotate(words, **place, textcoords="offset points", fontsize=9, color=TEXT)
        axes.set(
            xlim=(0, last * 1.02), ylim=(0, ceiling), xlabel="drafted tokens in a step", ylabel="cost in plain steps"
        )
        axes.set_title(title)
        axes.legend(loc="lower right", fontsize=9.5)


def plot_workloads(path: Path, groups: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Speed by kind, plain decoding at 1.

    Args:
        path: The image, `.svg`, `.png` or `.pdf`.
        groups: As `quoth bench workloads` records them: `name` and `speedup`.
        title: A line above.
    """
    kinds = [g for g in groups if g["name"] != "all"]
    kinds.sort(key=lambda group: -group["speedup"]["ratio"])
    rows = [*kinds, *(g for g in groups if g["name"] == "all")]
    with _axes(path, (7.2, 0.6 + 0.34 * (len(rows) + 1))) as axes:
        places = [*range(len(kinds)), *(len(kinds) + 0.4 for _ in rows[len(kinds) :])]
        middle = [group["speedup"]["ratio"] for group in rows]
        low = [m - group["speedup"]["low"] for m, group in zip(middle, rows, strict=True)]
        high = [group["speedup"]["high"] - m for m, group in zip(middle, rows, strict=True)]
        colours = [
            TEAL if g["name"] == "all" else BLUE if m >= 1 else ORANGE for m, g in zip(middle, rows, strict=True)
        ]
        errors = {"ecolor": TEXT, "elinewidth": 1.3, "capsize": 2.5}
        axes.barh(places, middle, height=0.66, color=colours, xerr=[low, high], error_kw=errors)
        for place, m, up in zip(places, middle, high, strict=True):
            axes.annotate(
                f"{m:.2f}×", (m + up, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10
            )
        axes.axvline(1, color=TEXT, lw=1.4, ls=(0, (4, 3)))
        axes.set_yticks(places, [group["name"] for group in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.12 * max(m + up for m, up in zip(middle, high, strict=True))))
        axes.set_xlabel("decoding speed, plain = 1 (same tokens)")
        axes.set_title(title)


def plot_acceptance(path: Path, by_match: Mapping[str, Sequence[Mapping[str, int]]], title: str = "") -> None:
    """How often the next token is the one that the longest match names, by the length of the match.

    Args:
        path: The image, `.svg`, `.png` or `.pdf`.
        by_match: For each line its name and, as `quoth bench replay` records them, `from`, `asked`, `right`.
        title: A line above.
    """
    with _axes(path, (7.2, 3.8)) as axes:
        starts = sorted({row["from"] for rows in by_match.values() for row in rows if row["from"] > 0}) or [1]
        place = {start: at for at, start in enumerate(starts)}
        for (name, rows), colour in zip(by_match.items(), COLOURS, strict=False):
            drawn = [row for row in rows if row["from"] > 0 and row["asked"] >= 20]
            if not drawn:
                continue
            shares = [row["right"] / row["asked"] for row in drawn]
            xs = [place[row["from"]] for row in drawn]
            axes.plot(xs, shares, "o-", color=colour, ms=5, lw=2, label=name)
            # Two standard errors of a share.
            errors = [2 * (p * (1 - p) / row["asked"]) ** 0.5 for p, row in zip(shares, drawn, strict=True)]
            low = [p - e for p, e in zip(shares, errors, strict=True)]
            high = [p + e for p, e in zip(shares, errors, strict=True)]
            axes.fill_between(xs, low, high, color=colour, alpha=0.25, lw=0)
        ends = [after - 1 for after in starts[1:]]
        names = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=False)] + [f"{starts[-1]}+"]
        axes.set_xticks(range(len(starts)), names)
        axes.set(ylim=(0, 1.02), xlabel="length of the match, in tokens", ylabel="next token right")
        axes.set_title(title)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right")
