"""Commands about values: print, set, Python statements, displays and watches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.session import setting
from adbg.tui.commands.table import CommandResult, command, need, numbers_of, table_result
from adbg.tui.debugger.reports import shown_text, tensor_view
from adbg.tui.text.formatting import format_of, printed_text, shape_text, tensor_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.stop_view import Shown


def _formatted(argument: str) -> tuple[str, str]:
    """ "/s EXPR" -> ("stats", "EXPR")."""
    if not argument.startswith("/"):
        return "", argument
    form, _, expression = argument[1:].partition(" ")
    return format_of(form), expression.strip()


_AT = re.compile(r"(?P<expression>.*\S)\s+at\s+(?P<node>#\d+|[A-Za-z_]\w*#\d+)\s*")


@command("print", "p", group="data", args="[/FORMAT] EXPR [at NODE]", completes="expression")
def print_(debugger: Debugger, argument: str) -> CommandResult:
    """Print the value of EXPR, evaluated in the selected frame.

    At a stop, EXPR can use grad_outputs (into the node), grad_inputs (out of it, after it ran), saved (by name), node,
    index, norm(t), stats(t) and nonfinite(t), as well as the locals and globals of the frame.
    Formats: `/meta` shape, dtype and device; `/stats` statistics (sampled above a million elements); `/exact`
    statistics of all elements; `/window` the numbers of a slice, e.g. `p/w grad_outputs[0][0]`. One letter is enough.
    Without a format a tensor shows its shape and statistics, then its numbers as the framework prints them;
    `/text` only these.
    `at #199` evaluates EXPR at another node: its saved tensors, and its gradients as they were if the program stopped
    there earlier in this backward.
    """
    form, expression = _formatted(argument)
    need(expression, "an expression", "print norm(grad_outputs[0])")
    node = 0
    if at := _AT.fullmatch(expression):
        expression, node = at["expression"], debugger.view.find_node(at["node"])
    if form and form != "text":
        view = tensor_view(debugger.view, expression, form, node)
        if view.meta is None:
            raise CommandError(f"{expression} is not a tensor: /{form} does not apply to {view.text[:60]}")
        return CommandResult(tensor_text(view), to_json(view))
    body = debugger.view.evaluate(expression, node=node, stats=not form)
    value: Any = body.value
    if value is None and body.tensor is not None:
        value = {"tensor": shape_text(body.tensor), "shape": list(body.tensor.shape or ()), "dtype": body.tensor.dtype}
    exact = to_json([body.tensor, body.stats]) if body.tensor is not None else None
    return CommandResult(body.result if form else printed_text(body, expression), value, exact=exact)


@command("set", group="data", args="TARGET = EXPR | SETTING VALUE", completes="expression")
def set_(debugger: Debugger, argument: str) -> CommandResult:
    """Set a gradient or a variable to the value of EXPR.

    `set grad_outputs[0] = EXPR` before the node, or `set grad_inputs[0] = EXPR` after it, changes the gradient that
    the backward continues with: shape, dtype and device are checked, and the value is cloned. Any other target is
    assigned in the selected frame. Without `=`, a setting of adbg's: `set stop all|one` (whether ranks stop and go on
    together), `set group-timeout hold|keep|SECONDS` (how long collectives wait while a rank is stopped).
    """
    changed = setting(debugger, argument)
    if changed is not None:
        return changed
    target, value = _assignment(argument)
    body = debugger.view.set_value(target, value)
    debugger.tell_edited()
    return CommandResult(f"{target} = {body.value}", body.value)


def _assignment(argument: str) -> tuple[str, str]:
    """Split at the first ``=`` outside brackets and quotes that is not part of a comparison."""
    depth, quote = 0, ""
    for at, char in enumerate(argument):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif (
            char == "="
            and not depth
            and argument[at + 1 : at + 2] != "="
            and argument[at - 1 : at] not in tuple("=!<>")
        ):
            target, value = argument[:at].strip(), argument[at + 1 :].strip()
            if target and value:
                if target[-1] in "+-*/@%":  # x *= 2
                    target, value = target[:-1].strip(), f"{target[:-1].strip()} {target[-1]} ({value})"
                return target, value
            break
    raise CommandError("expected TARGET = EXPR", "for example: set grad_outputs[0] = grad_outputs[0] * 0.5")


@command("!", group="data", args="STATEMENT", completes="statement")
def statement(debugger: Debugger, argument: str) -> CommandResult:
    """Execute Python statements in the selected frame and show what they print.

    The prompt accepts more lines while a block, a bracket or a string is open.
    """
    body = debugger.view.evaluate(need(argument, "a statement", "! import math"), "statement")
    debugger.tell_edited()
    return CommandResult(body.result.rstrip("\n"), body.result)


def _shown_result(row: Shown) -> CommandResult:
    here = bool(row.text or row.error)
    later = f"{row.number}: {row.expression} will be shown at every stop"
    return CommandResult(shown_text(row) if here else later, {"number": row.number, "expression": row.expression})


def _add(debugger: Debugger, argument: str, watched: bool) -> CommandResult:
    form, expression = _formatted(argument)
    if not expression:
        return shown_table(debugger)
    if watched and form in ("window", "stats", "exact"):
        raise CommandError(
            "a watch compares one value from stop to stop", f"watch norm({expression}), or display/{form[0]}"
        )
    return _shown_result(debugger.displays.add(expression, watched, form))


@command("display", group="data", args="[/FORMAT] [EXPR]", completes="expression")
def display(debugger: Debugger, argument: str) -> CommandResult:
    """Show EXPR at every stop; without EXPR, show all displays and watches now. Formats are as in `print`."""
    return _add(debugger, argument, False)


@command("watch", group="data", args="[EXPR]", completes="expression")
def watch(debugger: Debugger, argument: str) -> CommandResult:
    """Show EXPR at every stop, marked when its value has changed since the previous stop.

    A watch does not stop the program. To stop on a value, use a breakpoint with a condition
    (`break Mm* if norm(grad_outputs[0]) > 1`).
    """
    return _add(debugger, argument, True)


@command("undisplay", "unwatch", group="data", args="[N…]")
def undisplay(debugger: Debugger, argument: str) -> CommandResult:
    """Remove displays and watches by number, by default all."""
    if not argument:
        debugger.displays.clear()
        return CommandResult("removed all displays and watches")
    numbers = numbers_of(argument, "undisplay 1")
    for number in numbers:
        debugger.displays.remove(number)
    return CommandResult(f"removed: {', '.join(map(str, numbers))}", numbers)


def shown_table(debugger: Debugger) -> CommandResult:
    """All displays and watches with their values at this stop."""
    rows = debugger.displays.values()
    if not rows:
        return CommandResult("nothing is displayed or watched", [])
    if debugger.stop is None:
        cells = [(row.number, "watch" if row.watched else "display", row.expression) for row in rows]
        return table_result(("num", "type", "expression"), cells)
    values = [{"number": r.number, "expression": r.expression, "text": r.text, "error": r.error} for r in rows]
    return CommandResult("\n".join(shown_text(row) for row in rows), values)
