"""Every key of the app as one table: bindings, hints line and help are made from it. Pure data.

A user's own keys (``App.set_keymap``) are by the ``id`` of a row; help reads the live bindings, so it shows those.
"""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True, slots=True)
class Key:
    """One row. ``where`` is what has the binding: the app, a screen, or a family of panels; ``hint`` its word in the
    hints line ("": not there), ``command`` the console command that does the same."""

    id: str
    keys: str
    action: str
    text: str
    group: str
    where: str = "app"
    hint: str = ""
    command: str = ""
    priority: bool = False


GROUPS = ("Run", "Break", "Look", "Move", "Panels", "Program", "adbg")

# fmt: off
KEYS: tuple[Key, ...] = (
    Key("step", "s", "run_command('step')", "step: next node, into nested backward", "Run", hint="Step",
        command="step"),
    Key("next", "n", "run_command('next')", "next node on this level", "Run", hint="Next", command="next"),
    Key("finish", "f,r", "run_command('finish')", "finish this custom Function (PyLayer), nested backward or backward",
        "Run", hint="Finish", command="finish"),
    Key("after", "a", "run_command('after')", "run this node, then stop after it", "Run", hint="After",
        command="after"),
    Key("continue", "c", "run_command('continue')", "continue", "Run", hint="Cont", command="continue"),
    Key("until", "t", "until_cursor", "run to the node under the cursor", "Run", hint="To cursor", command="until"),
    Key("pause", "i", "run_command('pause')", "pause at the next node", "Run", hint="Pause", command="pause"),
    Key("interrupt", "ctrl+c", "interrupt",
        "pause; again within 2 s, if it does not stop: SIGINT to the script; in the console: clear the line", "Run",
        priority=True),
    Key("repeat", "S", "repeat", "repeat the last stepping command (empty Enter in the console)", "Run"),
    Key("break", "b", "toggle_breakpoint", "set or remove a breakpoint at the cursor", "Break", hint="Break",
        command="break"),
    Key("condition", "B", "conditional_breakpoint", "breakpoint with a condition, count or phase", "Break",
        command="break"),
    Key("delete", "delete", "delete_breakpoint", "remove the breakpoint under the cursor", "Break", command="delete"),
    Key("print", "p", "print_value", "print the value shown", "Look", hint="Print", command="print"),
    Key("watch", "w", "watch", "watch the value shown, or an expression", "Look", hint="Watch", command="watch"),
    Key("slice", "x", "slice", "show another slice of the value", "Look"),
    Key("edit", "v", "edit_value", "change the value shown (set)", "Look", command="set"),
    Key("up", "u", "run_command('up')", "frame up", "Look", hint="Up", command="up"),
    Key("down", "d", "run_command('down')", "frame down", "Look", hint="Down", command="down"),
    Key("home", "H", "home", "back to the node and frame of the stop", "Look"),
    Key("tabnext", "right_square_bracket", "cycle(1)", "next value, or next tab of the panel", "Look", where="screen"),
    Key("tabprevious", "left_square_bracket", "cycle(-1)", "previous value, or previous tab of the panel", "Look",
        where="screen"),
    Key("yank", "y", "yank", "copy the line or value (OSC 52)", "Look", where="screen"),
    Key("search", "slash", "search", "search in this panel", "Move", hint="Find", where="screen"),
    Key("searchnext", "N,full_stop", "search_next(1)", "next match", "Move", where="screen"),
    Key("searchprevious", "P,comma", "search_next(-1)", "previous match", "Move", where="screen"),
    Key("filter", "ampersand", "filter", "filter the log (+k: k lines of context)", "Move", where="screen"),
    Key("badnext", "e", "next_bad(1)", "next NaN, Inf or error", "Move", where="screen"),
    Key("badprevious", "E", "next_bad(-1)", "previous NaN, Inf or error", "Move", where="screen"),
    Key("mark", "m", "mark", "mark this line", "Move", where="screen"),
    Key("tomark", "apostrophe", "to_mark", "go to the next mark", "Move", where="screen"),
    Key("panel1", "1", "panel('graph')", "Graph; again: zoom", "Panels", where="main"),
    Key("panel2", "2", "panel('vlog')", "Log (VLOG); again: zoom", "Panels", where="main"),
    Key("panel3", "3", "panel('source')", "Source; again: zoom", "Panels", where="main"),
    Key("panel4", "4", "panel('value')", "Value; again: zoom", "Panels", where="main"),
    Key("panel5", "5", "panel('console')", "Console; again, with nothing typed: zoom", "Panels", where="main"),
    Key("zoom", "z", "zoom", "zoom this panel, or leave the zoom", "Panels", hint="Zoom", where="main"),
    Key("grow", "plus", "resize(1)", "larger panel", "Panels", where="main"),
    Key("shrink", "minus", "resize(-1)", "smaller panel", "Panels", where="main"),
    Key("minimise", "underscore", "minimise", "smallest panel", "Panels", where="main"),
    Key("even", "equals_sign", "even", "reset the panel sizes", "Panels", where="main"),
    Key("focusnext", "tab", "focus_panel(1)", "next panel", "Panels", where="main"),
    Key("focusprevious", "shift+tab", "focus_panel(-1)", "previous panel", "Panels", where="main"),
    Key("consolefocus", "ctrl+x", "toggle_console", "into the console, or back", "Panels", priority=True),
    Key("output", "o", "screen('output')", "the program's output, and its input", "Program", hint="Output"),
    Key("threads", "W", "screen('threads')", "every thread, and what it waits for", "Program",
        command="where all"),
    Key("memory", "f6", "screen('memory')", "memory: the process, its course over iterations, what the graph retains",
        "Program", command="info memory"),
    Key("findings", "f8", "screen('findings')", "findings of diagnosis: what is wrong, which line, what proves it",
        "Program", command="diagnose"),
    Key("ranks", "J,f9", "ranks", "the ranks of the job: where each is, what it waits for", "Program", where="main",
        command="info ranks"),
    Key("command", "colon", "command", "command line", "adbg", hint="Cmd", priority=True),
    Key("prompt", "exclamation_mark", "full_prompt", "full prompt on the whole terminal", "adbg"),
    Key("profile", "f5", "screen('profile')", "profile: measure a region of the run, or open a report", "Program",
        command="profile"),
    Key("main", "escape", "main", "main screen; leave the zoom", "adbg", where="main"),
    Key("help", "question_mark,f1", "screen('help')", "this help", "adbg", hint="Help", command="help"),
    Key("redraw", "ctrl+l", "redraw", "draw the screen anew (in the console: clear its output)", "adbg"),
    Key("quit", "q", "ask_quit", "quit (asks first while a script runs)", "adbg", command="quit"),
    Key("leave", "ctrl+q", "leave", "quit, from anywhere (asks while a script runs; again: ends it)", "adbg",
        command="quit", priority=True),
    # panels of lines
    Key("linedown", "j,down", "move(1)", "line down", "Move", "panel"),
    Key("lineup", "k,up", "move(-1)", "line up", "Move", "panel"),
    Key("first", "g,home", "first", "first line", "Move", "panel"),
    Key("last", "G,end", "last", "last line (the log follows)", "Move", "panel"),
    Key("halfdown", "ctrl+d", "page(1)", "half a page down", "Move", "panel"),
    Key("halfup", "ctrl+u", "page(-1)", "half a page up", "Move", "panel"),
    Key("pagedown", "ctrl+f,pagedown", "page(2)", "page down", "Move", "panel"),
    Key("pageup", "ctrl+b,pageup", "page(-2)", "page up", "Move", "panel"),
    Key("open", "enter", "open", "open: detail, grid, or go there", "Look", "panel"),
    Key("fold", "space", "fold", "fold or unfold this line", "Move", "foldable"),
    Key("feeder", "h,left", "neighbour(-1)", "along the chain: to a node that feeds this one", "Move", "graph"),
    Key("fed", "l,right", "neighbour(1)", "along the chain: to a node that this one feeds", "Move", "graph"),
    Key("sibling", "L", "sibling", "after h or l: the next of several such nodes", "Move", "graph"),
    Key("codeleft", "h,left", "sideways(-1)", "scroll to the left in long lines", "Move", "code"),
    Key("coderight", "l,right", "sideways(1)", "scroll to the right in long lines", "Move", "code"),
    Key("foldin", "h,left", "fold_to(-1)", "fold", "Move", "vlog"),
    Key("foldout", "l,right", "fold_to(1)", "unfold", "Move", "vlog"),
    Key("foldmore", "less_than_sign", "fold_level(-1)", "fold all; press again to fold one more level", "Move", "vlog"),
    Key("foldless", "greater_than_sign", "fold_level(1)", "unfold one level everywhere", "Move", "vlog"),
    Key("columns", "T", "columns", "show or hide the thread and source columns", "Move", "vlog"),
    Key("follow", "F", "follow", "follow the end", "Move", "vlog"),
    Key("giveup", "escape", "give_up", "cancel a search or filter that is still running", "Move", "vlog"),
)
# fmt: on

BY_ID = {key.id: key for key in KEYS}

# The order of the hints line; what does not fit is left out from the right, so the ones a newcomer needs come early.
HINTS = (
    "help", "step", "next", "continue", "break", "print", "zoom", "command", "finish",
    "after", "until", "search", "output", "watch", "pause", "up", "down",
)  # fmt: skip


def bindings(where: str) -> list[BindingType]:
    """The Textual bindings of one ``where``."""
    return [
        Binding(key.keys, key.action, key.text, id=key.id, priority=key.priority, show=False)
        for key in KEYS
        if key.where == where
    ]
