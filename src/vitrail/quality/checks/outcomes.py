"""What `check` says of times to an event and of weights, beyond what it says of every column."""

from __future__ import annotations

from collections.abc import Iterator

from vitrail.data.findings import CheckFinding
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.columns import ParsedTable

SHORT = 0.05  # of the rows: so few followed to the horizon say little about it


def find_outcome_faults(seen: ParsedTable, table: TableSchema) -> Iterator[CheckFinding]:
    """`seen`: with times and weights beside the features; `table`: as the study has it."""
    target, stands = table.target, table.weight_column
    if target.kind == "time" and target.time in seen.values:
        yield from _find_time_faults(seen, table)
    if stands and stands in seen.values:
        off = ~(seen.values[stands] > 0)
        if off.any():
            text = f"{off.sum()} of {len(off)} rows have no weight above 0"
            hint = "Every row needs a weight: the number of people it stands for."
            yield CheckFinding("weight_missing", "error", stands, seen.rows(off), int(off.sum()), text, hint)


def _find_time_faults(seen: ParsedTable, table: TableSchema) -> Iterator[CheckFinding]:
    target = table.target
    time, horizon = seen.values[target.time], target.ends[-1]
    unit = f" {target.unit}" if target.unit else ""
    before, absent = time < 0, seen.absent(target.time)
    if before.any():
        text = f"{before.sum()} of {len(time)} times are below 0"
        hint = "Times are counted from the start of follow-up: correct or empty them."
        yield CheckFinding("time_before", "error", target.time, seen.rows(before), int(before.sum()), text, hint)
    if absent.any():
        text = f"{absent.sum()} of {len(time)} rows have no time"
        yield CheckFinding(
            "time_missing", "warning", target.time, seen.rows(absent), int(absent.sum()), text, "They are left out."
        )
    observed = time.dropna()
    reached = int((observed >= horizon).sum())
    if len(observed) and reached < SHORT * len(observed) and target.column in seen.values:
        still = int(((seen.values[target.column] == 0) & (time < horizon)).sum())
        if still:
            text = f"{reached} of {len(observed)} rows were followed to the horizon of {horizon:g}{unit}; the longest "
            text += f"follow-up is {observed.max():g}{unit}"
            hint = (
                "These rows say little about what happens so late: agree on an earlier horizon, or check the unit of "
                "the times."
            )
            yield CheckFinding("short_follow_up", "warning", target.time, (), still, text, hint)
