"""Fills docs/performance.md and draws its pictures from the runs. The page's text is written by hand; its
figures stand between markers and are replaced.
"""

import re
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measurement import Measurement
from bench.report import (
    answers_per_second,
    cpu_ms_per_request,
    lag_p99_ms,
    number,
    ttft_p50_ms,
)
from bench.table import pictures
from bench.table.results import Parts, as_results, readings
from bench.table.rows import (
    ACCOUNTED,
    ACCOUNTED_MSGSPEC,
    DATABASES,
    ROWS,
    bounded,
    cpu_us_per_token,
    peak_pss_mb,
)

PAGE = "performance.md"
ENOUGH_ROUNDS = 5
MARKER = re.compile(r"(<!-- figures: ([a-z-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
TITLES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
SHAPES = {ACCOUNTED: "accounted floor", ACCOUNTED_MSGSPEC: "accounted floor, msgspec", "1+1": "chatapi"}
ROWS_OF_OURS = {
    f"{database} {variant}": f"{words}, {title}"
    for variant, words in SHAPES.items()
    for database, title in TITLES.items()
}


def write(parts: Parts, folder: Path) -> None:
    """Replace the figures of the page, and the pictures beside it."""
    file = folder / PAGE
    file.write_text(filled(file.read_text(), parts))
    for name, picture in pictures.drawn(parts).items():
        (folder / name).write_text(picture)


def filled(text: str, parts: Parts) -> str:
    """Return the page with the figures of these runs."""
    return MARKER.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](parts)}\n{found[4]}", text)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def verdicts(parts: Parts) -> str:
    """Return the table of the rows: bound, median, range and verdict on each database."""
    found = {(reading.row.name, reading.database): reading for reading in readings(parts)}
    lines = []
    for row in ROWS:
        measured = parts.get(row.part)
        cells = [row.words.format(rows_in_books=measured.rows_in_books if measured else 1_000_000)]
        for database, bound in zip(DATABASES, row.bounds, strict=True):
            wanted = f"{'≥' if row.is_lower_bound else '≤'} {bound:g}"
            reading = found.get((row.name, database))
            cells += [wanted, f"{reading}: {reading.verdict}" if reading else "not measured"]
        lines.append(cells)
    return table(["row", "SQLite, wanted", "measured", "PostgreSQL, wanted", "measured"], lines)


def accounted(parts: Parts) -> str:
    """Return the table of chatapi and the accounted floors for the rows that compare with another program."""
    found = {
        (reading.row.name, variant, reading.database): reading
        for variant in SHAPES
        for reading in readings(parts, bounded(variant))
    }
    lines = []
    for variant, words in SHAPES.items():
        for row in bounded(variant):
            cells = [row.words, words]
            for database, bound in zip(DATABASES, row.bounds, strict=True):
                reading = found.get((row.name, variant, database))
                cells.append(f"{'≥' if row.is_lower_bound else '≤'} {bound:g}")
                cells.append(f"{reading}: {reading.verdict}" if reading else "not measured")
            lines.append(cells)
    order = [row.words for row in ROWS]
    lines.sort(key=lambda cells: order.index(cells[0]))
    return table(["row", "program", "SQLite, wanted", "measured", "PostgreSQL, wanted", "measured"], lines)


def note(parts: Parts) -> str:
    """Return a note about the number of rounds, by which to judge the verdicts."""
    rounds = {len(runs) for measured in parts.values() for runs in measured.runs.values()}
    if min(rounds, default=0) >= ENOUGH_ROUNDS:
        return f"Every part has {min(rounds)} rounds or more."
    return (
        f"**A look**: some parts have fewer than {ENOUGH_ROUNDS} rounds, so their scatter is not known.\n"
        "The last section says how many, and how busy the machine was with other work."
    )


def origin(parts: Parts) -> str:
    """Return the origin of each part's runs: commit, time, rounds, machine and commands."""
    lines = []
    for name, measured in parts.items():
        rounds = max(map(len, measured.runs.values()), default=0)
        runs = [run for each in measured.runs.values() for run in each]
        calibrations, others = [run.calibration_ms for run in runs], [run.other_cores for run in runs]
        calibration = f"{min(calibrations):.0f}–{max(calibrations):.0f}"
        line = [name, f"`{measured.commit}`", measured.at, str(rounds), calibration]
        line.append(f"{median(others):.2f} ({max(others):.2f})")
        lines.append([*line, "; ".join(measured.skipped)])
    heads = ["part", "commit", "ended", "rounds", "calibration, ms", "other processes' cores, median (most)"]
    machines = sorted({measured.machine for measured in parts.values()})
    commands = [f"    {command}" for command in sorted({measured.command for measured in parts.values()})]
    return "\n".join([table([*heads, "skipped"], lines), "", *machines, "", *commands])


def side_by_side(parts: Parts) -> str:
    """Return the medians of each target's rates, latencies and CPU time."""
    lines = []
    for name in ("direct", "floor", "portkey", *ROWS_OF_OURS):
        cells = [ROWS_OF_OURS.get(name, name)]
        for part, figure, digits in (
            ("streams", answers_per_second, 0),
            ("streams", cpu_ms_per_request, 2),
            ("not streamed", answers_per_second, 0),
            ("not streamed", cpu_ms_per_request, 2),
            ("first token", ttft_p50_ms, 2),
            ("paced", lag_p99_ms, 1),
            ("paced", cpu_us_per_token, 0),
        ):
            cells.append(middle(parts, part, name, figure, digits))
        lines.append(cells)
    heads = [
        "streams/s",
        "CPU ms",
        "not streamed/s",
        "CPU ms",
        "first token ms",
        "lag p99 ms",
        "CPU µs a token",
    ]
    return table(["", *heads], lines)


def middle(
    parts: Parts, part: str, name: str, figure: Callable[[Measurement], float | None], digits: int
) -> str:
    """Return a median as a cell; a dash if it was not measured."""
    if part not in parts:
        return "-"
    return number(as_results(part, parts[part]).median(name, figure), digits)


def by_process(parts: Parts) -> str:
    """Return the CPU time a request of each process."""
    shares = pictures.cpu_by_process(parts)
    names = list(dict.fromkeys(name for share in shares.values() for name in share))
    lines = [
        [target, *(number(share.get(name), 2) for name in names), f"{sum(share.values()):.2f}"]
        for target, share in shares.items()
    ]
    return table(["CPU ms a request", *names, "all"], lines)


def by_thread(parts: Parts) -> str:
    """Return the CPU time of each thread of web and worker, a request and a paced token."""
    columns: dict[str, dict[str, float]] = {}
    for part, scale in (("threads", 1), ("paced threads", 10)):
        for database, title in TITLES.items():
            runs = parts[part].runs.get(f"{database} 1+1 probed", []) if part in parts else []
            unit = f"{title}, ms a request" if scale == 1 else f"{title}, µs a paced token"
            columns[unit] = {
                thread: scale * median(run.thread_cpu_ms.get(thread, 0) for run in runs)
                for thread in sorted({thread for run in runs for thread in run.thread_cpu_ms})
            }
    threads = sorted({thread for column in columns.values() for thread in column})
    lines = [
        [THREADS.get(thread, thread), *(number(column.get(thread), 2) for column in columns.values())]
        for thread in threads
        if max(column.get(thread, 0) for column in columns.values()) >= 0.02
    ]
    return table(["thread", *columns], lines)


THREADS = {
    "web python": "web: event loop",
    "worker python": "worker: Celery",
    "worker tasks": "worker: event loop",
}


def sizing(parts: Parts) -> str:
    """Return the CPU time and memory of a request, a token and an open stream, and the streams that a core
    carries.
    """
    lines = []
    for database, title in TITLES.items():
        name = f"{database} 1+1"
        short, long = (
            as_results(part, parts[part]).median(name, cpu_ms_per_request) if part in parts else None
            for part in ("streams", "long streams")
        )
        crowd = parts["crowd"].runs.get(f"{name} alone", []) if "crowd" in parts else []
        peak_mb = peak_pss_mb(crowd[0]) if crowd else None
        rest_mb = crowd[0].rest_pss_mb if peak_mb else None
        token_us = (long - short) * 1_000 / 192 if short and long else None
        lines.append(
            [
                title,
                number(short, 2),
                number(short - token_us * 64 / 1_000 if short and token_us is not None else None, 2),
                number(token_us, 1),
                middle(parts, "paced", name, cpu_us_per_token, 0),
                middle(parts, "crowd", f"{name} alone", cpu_us_per_token, 0),
                number(1_000 / short if short else None, 0),
                number(rest_mb, 0),
                number((peak_mb - rest_mb) * 1.024 if peak_mb and rest_mb else None, 0),
            ]
        )
    heads = [
        "CPU ms: a stream of 64 tokens",
        "of it, for the request",
        "CPU µs: a token more",
        "a token that comes alone, 200 streams",
        "1,000 streams",
        "streams/s that a core carries",
        "MB at rest",
        "KB an open stream",
    ]
    return table(["", *heads], lines)


def scale(parts: Parts) -> str:
    """Return answers a second and CPU time of one and of two processes of each kind, free and pinned."""
    lines = []
    for part in ("processes", "pinned"):
        names = parts[part].runs if part in parts else {}
        for name in names:
            database, _, variant = name.partition(" ")
            rate = as_results(part, parts[part]).values(name, answers_per_second)
            cpu = as_results(part, parts[part]).median(name, cpu_ms_per_request)
            spread = f"{median(rate):.0f} ({min(rate):.0f}–{max(rate):.0f})"
            lines.append([variant, TITLES[database], spread, number(cpu, 2)])
    return table(["web + workers", "database", "streams/s", "CPU ms a request"], lines)


BLOCKS: dict[str, Callable[[Parts], str]] = {
    "note": note,
    "verdicts": verdicts,
    "accounted": accounted,
    "origin": origin,
    "side-by-side": side_by_side,
    "by-process": by_process,
    "by-thread": by_thread,
    "sizing": sizing,
    "scale": scale,
}
