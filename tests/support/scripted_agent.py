"""An agent in the test's own process that speaks the wire over a real socket and answers from a script of its own.

It knows no session and no stepping rules: it holds a straight graph of named nodes and a position in it. Every
request that it got is kept in ``requests``. Faults are switched on by attributes.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, NotStopped, UnknownName
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import BreakpointState, Hello, ProcessInfo
from adbg.engine.session.breakpoints.grammar import parse_spec
from adbg.engine.types import (
    ExitStatus,
    GraphRow,
    NodeInfo,
    NodeStop,
    Phase,
    SlotView,
    SourceLine,
    SpecKind,
    StopReason,
    TensorMeta,
    TensorStats,
    TensorView,
)

NAMES = ("SumBackward0#1", "MmBackward0#2", "ReluBackward0#1", "MmBackward0#1", "AccumulateGrad#1")


class ScriptedAgent:
    """``path`` and ``token`` as in session.json. Nodes are 1 .. 5 (NAMES), each feeding the next; node 2 also feeds
    node 4."""

    def __init__(
        self,
        path: str,
        token: str,
        rank: int = 0,
        main: bool = True,
        nodes: tuple[str, ...] = NAMES,
        info: ProcessInfo | None = None,
    ) -> None:
        self.names = nodes
        self.rank = rank
        self.requests: list[Any] = []
        self.position = 0
        self.stopped = self.pausing = self.over = False
        self.breakpoints: list[protocol.BreakpointRequest] = []
        self.hits: dict[int, int] = {}
        self.silent: set[str] = set()  # commands that get no answer
        self.values: dict[str, Any] = {"1 + 1": 2, "index": None}
        self.on_begin: Callable[[], None] = self.backward
        self.seq = 0
        self.lock = threading.Lock()
        self.begun = threading.Event()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self.stream = self.sock.makefile("rb")
        self.actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        process = info or ProcessInfo(1000 + rank, rank, ["train.py"], "/usr/bin/python", "/tmp", "", [], main=main)
        self.process = process
        self.event(Hello(token, process))
        threading.Thread(target=self.serve, daemon=True).start()
        threading.Thread(target=self.act, daemon=True).start()

    # ---- wire

    def put(self, message: dict[str, Any]) -> None:
        with self.lock:
            self.seq += 1
            with contextlib.suppress(OSError):
                self.sock.sendall(wire.encode({"seq": self.seq, **message}))

    def event(self, body: Any) -> None:
        self.put({"type": "event", "event": type(body).EVENT, "body": wire.to_json(body)})

    def serve(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (message := wire.read_message(self.stream)) is not None:
                self.answer(message)

    def act(self) -> None:
        while (action := self.actions.get()) is not None:
            action()

    def answer(self, message: dict[str, Any]) -> None:
        command = message["command"]
        arguments = wire.from_json(protocol.REQUESTS[command][0], message.get("arguments") or {})
        self.requests.append(arguments)
        if command in self.silent:
            return
        head = {"type": "response", "request_seq": message["seq"], "command": command}
        try:
            handler = getattr(self, "do_" + command.replace("adbg/", ""), None)
            body = handler(arguments) if handler is not None else protocol.REQUESTS[command][1]()
        except AdbgError as error:
            detail = {"id": error.ID, "format": error.message, "hint": error.hint}
            self.put({**head, "success": False, "message": error.message, "body": {"error": detail}})
            return
        self.put({**head, "success": True, "body": wire.to_json(body)})

    def gone(self) -> None:
        """The process dies."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.actions.put(None)

    # ---- the program

    def node(self, index: int) -> NodeInfo:
        unique = self.names[index - 1]
        line = SourceLine(__file__, 40 + index, "forward")
        return NodeInfo(index, unique.split("#")[0], unique, index, "layers.0", None, line)

    def stop_at(
        self, index: int, reason: StopReason = StopReason.STEP, phase: Phase = Phase.BEFORE, **more: Any
    ) -> None:
        self.position = index
        self.stopped, self.pausing = True, False
        node = self.node(index) if index else None
        stop = NodeStop(reason, phase, 7, 1, index, len(self.names), 0, self.rank, node=node, iteration=1, **more)
        self.event(protocol.Stopped(reason.value, 7, hitBreakpointIds=list(stop.breakpoints), adbg=stop))

    def backward(self) -> None:
        """The script calls backward once: run from the first node on."""
        self.event(protocol.BackwardBegin(1, len(self.names), [self.names[0].split("#")[0]], 0, __file__, 3, 1, 7))
        self.position = 0
        self.run_on()

    def run_on(self, until: str = "") -> None:
        for index in range(self.position + 1, len(self.names) + 1):
            self.position = index
            name = self.names[index - 1]
            hit = [b for b in self.breakpoints if b.enabled and name.startswith(b.name)]
            for b in hit:
                self.hits[b.id] = self.hits.get(b.id, 0) + 1
            if hit or (until and name.startswith(until)):
                for b in hit:
                    self.event(protocol.BreakpointChanged("changed", self.state(b)))
                self.stop_at(
                    index, StopReason.BREAKPOINT if hit else StopReason.STEP, breakpoints=tuple(b.id for b in hit)
                )
                return
        self.event(protocol.BackwardEnd(1, 120.0))
        self.over = True
        self.finished()

    def finished(self) -> None:
        """Overridden where a program is around."""

    def state(self, b: protocol.BreakpointRequest) -> BreakpointState:
        good = not b.name.startswith("???")
        matches = sum(name.startswith(b.name) for name in self.names)
        message = "" if matches or not b.name[0].isupper() else "no node of this graph matches; closest: MmBackward0"
        return BreakpointState(
            b.id,
            good,
            message if good else "cannot read the spec '???'",
            b.name,
            matches,
            self.hits.get(b.id, 0),
            b.enabled,
            **place(b.name),
        )

    def go(self, action: Callable[[], None]) -> None:
        if not self.stopped:
            raise NotStopped("the program is running")
        self.stopped = False
        self.actions.put(action)

    # ---- requests

    def do_initialize(self, arguments: protocol.Initialize) -> protocol.InitializeBody:
        return protocol.InitializeBody(adbg=self.process)

    def do_setFunctionBreakpoints(self, arguments: protocol.SetFunctionBreakpoints) -> protocol.Breakpoints:
        self.breakpoints = [b for b in arguments.breakpoints if not b.name.startswith("???")]
        return protocol.Breakpoints([self.state(b) for b in arguments.breakpoints])

    def do_setExceptionBreakpoints(self, arguments: protocol.SetExceptionBreakpoints) -> protocol.Breakpoints:
        return protocol.Breakpoints([])

    def do_configurationDone(self, arguments: protocol.ConfigurationDone) -> protocol.Empty:
        self.begun.set()
        if arguments.stop_on_entry:
            self.actions.put(lambda: self.stop_at(0, StopReason.ENTRY, Phase.BEGIN))
        else:
            self.actions.put(self.on_begin)
        return protocol.Empty()

    def do_continue(self, arguments: protocol.Continue) -> protocol.ContinueBody:
        self.go(self.run_on)
        return protocol.ContinueBody()

    def step(self, arguments: Any) -> protocol.Empty:
        ahead = self.position + 1
        self.go((lambda: self.stop_at(ahead)) if ahead <= len(self.names) else self.finished)
        return protocol.Empty()

    do_stepIn = do_next = do_stepOut = step

    def do_after(self, arguments: Any) -> protocol.Empty:
        self.go(lambda: self.stop_at(self.position, phase=Phase.AFTER, elapsed_us=41.0))
        return protocol.Empty()

    def do_until(self, arguments: protocol.Until) -> protocol.Empty:
        if arguments.spec.startswith("???"):
            raise CommandError("cannot read the spec '???'")
        self.go(lambda: self.run_on(arguments.spec))
        return protocol.Empty()

    def do_pause(self, arguments: protocol.Pause) -> protocol.Empty:
        if arguments.on and self.stopped:
            raise CommandError("the program is stopped already")
        self.pausing = arguments.on
        self.actions.put(self.pause)
        return protocol.Empty()

    def pause(self) -> None:
        """At the next node, if there is one."""
        if self.pausing and not self.stopped and not self.over:
            self.stop_at(max(1, self.position), StopReason.PAUSE)

    def do_evaluate(self, arguments: protocol.Evaluate) -> protocol.EvaluateBody:
        if arguments.context == "statement":
            return protocol.EvaluateBody("printed\n", "str")
        if arguments.expression == "grad_outputs[0]":
            two = TensorStats(2, None, 1.0, 2.0, 1.5, 0.5, 2.236, 0, 0, 0, 2, 0, 0, (1, 1))
            stats = two if arguments.stats else None
            meta = TensorMeta((2,), "f32", "cpu", 8, 2)
            return protocol.EvaluateBody("tensor([1., 2.])", "Tensor", tensor=meta, stats=stats)
        if arguments.expression == "index":
            return protocol.EvaluateBody(str(self.position), "int", value=self.position)
        if arguments.expression not in self.values:
            raise UnknownName(f"name {arguments.expression!r} is not defined")
        value = self.values[arguments.expression]
        return protocol.EvaluateBody(str(value), type(value).__name__, value=value)

    def do_attributes(self, arguments: protocol.Attributes) -> protocol.AttributesBody:
        return protocol.AttributesBody([])

    def do_setExpression(self, arguments: protocol.SetExpression) -> protocol.SetVariableBody:
        return protocol.SetVariableBody(arguments.value, "Tensor")

    def do_tensor(self, arguments: protocol.Tensor) -> TensorView:
        stats = TensorStats(2, None, 1.0, 2.0, 1.5, 0.5, 2.236, 0, 0, 0, 2, 0, 0, (1, 1))
        return TensorView(
            arguments.expression, TensorMeta((2,), "f32", "cpu", 8, 2), stats if arguments.stats else None
        )

    def do_stackTrace(self, arguments: protocol.StackTrace) -> protocol.StackTraceBody:
        source = protocol.Source("agent", __file__)
        frames = [
            protocol.StackFrame(1, self.names[max(self.position, 1) - 1], kind="node"),
            protocol.StackFrame(2, "forward", 40, 0, source, "forward"),
            protocol.StackFrame(3, "train", 50, 0, source, "live", True),
            protocol.StackFrame(4, "<module>", 60, 0, source, "live", True),
        ]
        return protocol.StackTraceBody(frames, len(frames))

    def edges(self, index: int) -> tuple[int, ...]:
        feeds = () if index == len(self.names) else (index + 1,)
        return (*feeds, 4) if index == 2 else feeds

    def do_graph(self, arguments: protocol.Graph) -> protocol.GraphBody:
        rows = []
        page = range(arguments.start, min(arguments.start + arguments.count, len(self.names) + 1))
        for index in arguments.indices or page:
            node = self.node(index)
            state = "done" if index < self.position else "here" if index == self.position else "todo"
            rows.append(
                GraphRow(
                    index,
                    index,
                    node.name,
                    node.unique_name,
                    state,
                    self.edges(index),
                    forward=node.forward,
                    module=node.module,
                    shape=(2, index),
                    dtype="f32",
                    norm=0.5 if state != "todo" else None,
                    nonfinite=index == 3 and self.position >= 3,
                )
            )
        return protocol.GraphBody(1, 1, len(self.names), self.position, rows)

    def do_find(self, arguments: protocol.Find) -> protocol.FindBody:
        number = arguments.text.lstrip("#")
        if number.startswith("0x"):  # node N stands at 0x1000 + N
            number = str(int(number, 16) - 0x1000)
        found = [i for i, name in enumerate(self.names, 1) if name.lower().startswith(arguments.text.lower())]
        index = int(number) if number.isdigit() else found[0] if len(found) == 1 else 0
        if not 1 <= index <= len(self.names):
            raise CommandError(f"{len(found)} nodes are called {arguments.text!r}")
        return protocol.FindBody(index)

    def do_path(self, arguments: protocol.Path) -> protocol.PathBody:
        if not arguments.source:
            slots = self.values.get("slots", [[2, 3]])
            return protocol.PathBody([1, 2, 3, 4], len(self.names), 3, [2, 3], 2, 0.3, 3, slots=slots)
        if arguments.source > arguments.node:
            raise CommandError("no gradient flows from there")
        return protocol.PathBody([arguments.source, 2, 4, arguments.node], len(self.names))

    def do_node(self, arguments: protocol.Node) -> protocol.NodeBody:
        index = arguments.index or self.position
        if not index:
            raise NotStopped("no node is at hand")
        meta = TensorMeta((2, 3), "f32", "cpu", 24, 6)
        slot = SlotView("grad_outputs[0]", "grad_outputs[0]", meta, "#1 SumBackward0", 0.022)
        fed = [i for i in range(1, index) if index in self.edges(i)]
        return protocol.NodeBody(
            self.node(index),
            "here",
            index,
            [slot],
            [],
            [SlotView("self", "saved['self']", meta)],
            {"dim": "0"},
            fed,
            list(self.edges(index)),
        )

    def do_info(self, arguments: protocol.Info) -> protocol.InfoBody:
        if arguments.what == "names":
            return protocol.InfoBody(
                "", ["name", "nodes"], [["MmBackward0", 2], ["ReluBackward0", 1], ["SumBackward0", 1]]
            )
        raise CommandError(f"nothing is known about {arguments.what!r}")

    def do_memory(self, arguments: protocol.Memory) -> protocol.MemoryBody:
        process = protocol.ProcessMemory(rss=1024)
        return protocol.MemoryBody(
            process, [], [], protocol.Course(False), protocol.NodesMemory(False), None, "there is no graph here"
        )

    def do_vlog(self, arguments: protocol.Vlog) -> protocol.VlogBody:
        return protocol.VlogBody({"*": int(arguments.levels or 0)})

    def do_dump(self, arguments: protocol.Dump) -> protocol.DumpBody:
        return protocol.DumpBody([f"{arguments.directory}/{arguments.what}.dot"])

    def do_record(self, arguments: protocol.Record) -> protocol.RecordBody:
        return protocol.RecordBody(bool(arguments.on), "/runs/1")


def place(spec: str) -> dict[str, Any]:
    """Kind, file and line of a spec, as the real agent parses it."""
    try:
        parsed = parse_spec(spec)
    except CommandError:
        return {}
    file, line = (parsed.pattern, parsed.number) if parsed.kind is SpecKind.LINE else ("", 0)
    return {"kind": parsed.kind, "file": file, "line": line}


class ScriptedProgram:
    """A Program whose process is a ScriptedAgent (or several) behind a real Listener."""

    launched = True
    attachment: Any = None
    detached_start = False
    command: tuple[str, ...] = ()
    stacks: bool | None = None
    folder = ""
    joining = ""

    def __init__(self, ranks: int = 1, prepare: Callable[[ScriptedAgent], None] | None = None) -> None:
        self.ranks = ranks
        self.prepare = prepare or (lambda agent: None)
        self.agents: list[ScriptedAgent] = []
        self.signals: list[int] = []
        self.typed = b""
        self.wait = ""  # for input
        self.run_dir = ""
        self.code = 0
        self.starts = 0
        self._listener: Any = None
        self._left = 0

    def start(self, on_agent: Any, on_output: Any, on_exit: Any, on_note: Any) -> None:
        from adbg.tui.debugger.client import Listener

        self.close()
        self.starts += 1
        self.on_output, self.on_exit, self.on_note = on_output, on_exit, on_note
        self._listener = Listener(lambda client, hello: on_agent(client, hello.process))
        self.agents = []
        self._left = self.ranks
        for rank in range(self.ranks):
            agent = ScriptedAgent(self._listener.config.socket, self._listener.token, rank, rank == 0)
            agent.finished = lambda agent=agent: self.end(agent)  # type: ignore[method-assign]
            self.prepare(agent)
            self.agents.append(agent)

    @property
    def token(self) -> str:
        return str(self._listener.token)

    def end(self, agent: ScriptedAgent) -> None:
        agent.gone()
        self._left -= 1
        if not self._left:
            self.on_output("stdout", b"done\n")
            threading.Thread(target=self.on_exit, args=(ExitStatus(self.code),), daemon=True).start()

    def take_unread(self) -> str:
        return ""

    def write_stdin(self, data: bytes) -> None:
        self.typed += data

    def input_wait(self) -> str:
        return self.wait

    def drain(self) -> None:
        pass

    def resize(self, rows: int, cols: int) -> None:
        pass

    def signal(self, signum: int) -> None:
        self.signals.append(signum)
        if signum == 9:
            self.code = 137
            self._left = 1
            for agent in self.agents:
                agent.gone()
            self.end(self.agents[0])

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
