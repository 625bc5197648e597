"""A report as one static HTML page: what was measured, the verdict, the table, the flame graph. It loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

from adbg.profiles.report.formats.amounts import amount, fact, share
from adbg.profiles.report.formats.svg import drawing
from adbg.profiles.report.model import Profile
from adbg.profiles.report.tables import Grouping, Order, table
from adbg.profiles.report.verdict import judge

_ROWS = 300
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 1.5em; color: #1a1a1a; background: #fff }}
table {{ border-collapse: collapse; font: 12px ui-monospace, Menlo, Consolas, monospace }}
th {{ cursor: pointer; text-align: right; border-bottom: 2px solid #888; padding: 2px 10px; position: sticky; top: 0;
background: #fff }} td {{ padding: 1px 10px; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap }}
td.t, th.t {{ text-align: left; white-space: normal; word-break: break-all }} dt {{ font-weight: bold; float: left;
clear: left; width: 9em }} svg {{ max-width: 100%; height: auto }}
</style></head><body><h1>{title}</h1>
{facts}
{verdict}
<h2>Flame graph</h2>
{svg}
<h2>Functions</h2>
<table id="rows"><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
{more}
<script>
document.querySelectorAll("#rows th").forEach(function (head, column) {{
  head.addEventListener("click", function () {{
    var body = document.querySelector("#rows tbody"), rows = Array.from(body.rows);
    var down = head.dataset.down = head.dataset.down === "1" ? "0" : "1";
    function key(row) {{
      var cell = row.cells[column];
      return "v" in cell.dataset ? +cell.dataset.v : cell.textContent;
    }}
    rows.sort(function (a, b) {{
      var x = key(a), y = key(b), order = x < y ? -1 : x > y ? 1 : 0;
      return down === "1" ? -order : order;
    }});
    rows.forEach(function (row) {{ body.appendChild(row); }});
  }});
}});
</script></body></html>
"""
_HEADS = ("self", "self %", "cumulative", "cumulative %", "calls", "per call", "function", "where")


def write(profile: Profile, path: Path) -> None:
    found = table(profile, Grouping.FUNCTION, Order.SELF)
    forward = {(node.unique_name or node.name, node.file, node.line): node.in_forward for node in profile.nodes}
    timed = any(each is not None for each in forward.values())
    rows = []
    for row in found.rows[:_ROWS]:
        frame = row.frame
        where = (frame.file or frame.module) + (f":{frame.line}" if frame.line else "")
        per_call = row.per_call
        rows.append(
            "<tr>"
            + _cell(row.own, amount(row.own, found.unit))
            + _cell(row.own, share(row.own, found.total))
            + _cell(row.cumulative, amount(row.cumulative, found.unit))
            + _cell(row.cumulative, share(row.cumulative, found.total))
            + _cell(row.calls or 0, f"{row.calls:,}" if row.calls is not None else "")
            + _cell(per_call or 0.0, amount(per_call, found.unit) if per_call is not None else "")
            + (_forward(forward.get((frame.name, frame.file, frame.line)), found.unit) if timed else "")
            + f'<td class="t">{escape(frame.name)}</td><td class="t">{escape(where)}</td></tr>'
        )
    more = f"<p>{len(found.rows) - _ROWS:,} rows more are not in this page.</p>" if len(found.rows) > _ROWS else ""
    names = [*_HEADS[:-2], *["forward"] * timed, *_HEADS[-2:]]
    heads = "".join(f'<th class="t">{name}</th>' if name in _HEADS[-2:] else f"<th>{name}</th>" for name in names)
    told = [(str(key), fact(value)) for key, value in profile.meta.items()]
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in told if text)
    page = _PAGE.format(
        title=escape(path.name.partition(".")[0]),
        facts=f"<dl>{facts}<dt>total</dt><dd>{escape(amount(found.total, found.unit))}</dd></dl>",
        verdict=_verdict(profile),
        svg=drawing(profile),
        heads=heads,
        rows="\n".join(rows),
        more=more,
    )
    path.write_text(page, "utf-8")


def _forward(seconds: float | None, unit: str) -> str:
    return _cell(seconds or 0.0, amount(seconds, unit) if seconds is not None else "not measured")


def _cell(value: float, text: str) -> str:
    return f'<td data-v="{value:.9g}">{escape(text)}</td>'


def _verdict(profile: Profile) -> str:
    verdict = judge(profile)
    if verdict is None:
        return ""
    parts = [f"{name} {amount(seconds, 'seconds')}" for name, seconds in verdict.parts]
    parts[-1] += f" of the usual {verdict.per}" if verdict.per else ""
    lines = [
        f"<li>{escape(line.file)}:{line.line}: {escape(amount(line.seconds, 'seconds'))} in {line.calls:,} nodes"
        + (f", {escape(amount(line.forward, 'seconds'))} in their forward" if line.forward is not None else "")
        + "</li>"
        for line in verdict.lines
    ]
    return f"<h2>{escape(verdict.bound.value)}</h2><p>{escape(', '.join(parts))}</p><ol>{''.join(lines)}</ol>"
