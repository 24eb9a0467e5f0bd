"""The pictures of docs/performance.md: bars as SVG, for light and dark pages, without external fonts or
scripts.
"""

from collections.abc import Mapping
from html import escape
from statistics import median

from bench.report import DIRECT, answers_per_second, own_cost
from bench.table.results import Parts, as_results

NAMES = {
    "floor": "floor",
    "portkey": "Portkey",
    "sqlite accounted": "accounted floor, SQLite",
    "postgresql accounted": "accounted floor, PostgreSQL",
    "sqlite accounted msgspec": "with msgspec, SQLite",
    "postgresql accounted msgspec": "with msgspec, PostgreSQL",
    "sqlite 1+1": "chatapi, SQLite",
    "postgresql 1+1": "chatapi, PostgreSQL",
    "sqlite 1+1 alone": "chatapi, SQLite",
    "postgresql 1+1 alone": "chatapi, PostgreSQL",
}
COLOURS = ("#3b82c4", "#d97b29", "#4c9f5a", "#a163b8", "#b8a038", "#7f8a94", "#c2476b")
WIDTH, LEFT, BAR, GAP = 720, 170, 22, 12
STYLE = (
    "text{font:13px sans-serif;fill:#24292f}.t{font-weight:bold}.v{font-size:12px}line{stroke:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#d0d7de}}"
)

Bars = Mapping[str, Mapping[str, float]]
"""Rows by label; each has its pieces by label."""


def drawn(parts: Parts) -> dict[str, str]:
    """Return the pictures by their file's name."""
    return {
        "performance-throughput.svg": bars(
            "Answers a second, 64 tokens, 32 at once", throughput(parts), is_stacked=False, digits=0
        ),
        "performance-memory.svg": bars("Memory with 1,000 streams, MB", memory(parts), digits=0),
        "performance-cpu.svg": bars("CPU time of a 64-token stream, ms", cpu_by_process(parts), digits=2),
    }


def throughput(parts: Parts) -> Bars:
    """Return the median answers a second of each target, streamed and not."""
    rows: dict[str, dict[str, float]] = {}
    for part, words in (("streams", "streamed"), ("not streamed", "not streamed")):
        if part in parts:
            results = as_results(part, parts[part])
            for name in results.runs:
                if name in NAMES and (rate := results.median(name, answers_per_second)):
                    rows.setdefault(NAMES[name], {})[words] = rate
    return rows


def memory(parts: Parts) -> Bars:
    """Return the median peak memory of each process under 1,000 streams."""
    rows = pieces(parts, "crowd", "peak_pss_mb")
    return {name: row for name, row in rows.items() if any(row.values())}  # 0 in older files of results


def cpu_by_process(parts: Parts) -> Bars:
    """Return the median CPU time a request of each process."""
    return pieces(parts, "streams", "cpu_ms_per_request")


def pieces(parts: Parts, part: str, attribute: str) -> Bars:
    """Return the median of a cost by target and process."""
    rows: dict[str, dict[str, float]] = {}
    for name, runs in (parts[part].runs if part in parts else {}).items():
        if name != DIRECT:
            groups = dict.fromkeys(group for run in runs for group in own_cost(run))
            rows[NAMES.get(name, name)] = {
                group: median(getattr(own_cost(run)[group], attribute) for run in runs) for group in groups
            }
    return rows


def bars(title: str, rows: Bars, *, digits: int, is_stacked: bool = True) -> str:
    """Return a picture of bars: a row is one bar of all its pieces or, not stacked, a bar for each piece."""
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    colours = {kind: COLOURS[number % len(COLOURS)] for number, kind in enumerate(kinds)}
    top = max((sum(row.values()) if is_stacked else max(row.values()) for row in rows.values()), default=1)
    scale = (WIDTH - LEFT - 90) / top
    marks, y = legend(title, colours), 60.0
    for label, row in rows.items():
        lanes = 1 if is_stacked else len(row)
        height, x = BAR * lanes, float(LEFT)
        marks.append(
            f'<text x="{LEFT - 8}" y="{y + height / 2 + 5:.0f}" text-anchor="end">{escape(label)}</text>'
        )
        for lane, kind in enumerate(kind for kind in kinds if kind in row):
            value = row[kind]
            width, line = value * scale, y if is_stacked else y + lane * BAR
            words = f"{label}, {kind}: {value:.{digits}f}"
            marks.append(
                f'<rect x="{x:.1f}" y="{line:.1f}" width="{width:.1f}" height="{BAR - 3}" '
                f'fill="{colours[kind]}"><title>{escape(words)}</title></rect>'
            )
            if is_stacked:
                x += width
            else:
                marks.append(value_at(LEFT + width, line, value, digits))
        if is_stacked:
            marks.append(value_at(x, y, sum(row.values()), digits))
        y += height + GAP
    marks.append(f'<line x1="{LEFT}" y1="54" x2="{LEFT}" y2="{y - GAP + 3:.0f}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n' + "\n".join(marks) + "\n</svg>\n"
    )


def legend(title: str, colours: Mapping[str, str]) -> list[str]:
    """Return the title and the colours' meanings."""
    marks, x = [f'<text class="t" x="8" y="18">{escape(title)}</text>'], 8.0
    for kind, colour in colours.items():
        marks.append(f'<rect x="{x:.0f}" y="30" width="12" height="12" fill="{colour}"/>')
        marks.append(f'<text x="{x + 17:.0f}" y="41">{escape(kind)}</text>')
        x += 40 + 7.2 * len(kind)
    return marks


def value_at(x: float, y: float, value: float, digits: int) -> str:
    """Return a number behind a bar."""
    return f'<text class="v" x="{x + 5:.1f}" y="{y + 14:.1f}">{value:,.{digits}f}</text>'
