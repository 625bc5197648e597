"""What each request of ``protocol`` does. Runs on "adbg-reader".

Three kinds: those answered here, without a tensor; those that make the program continue; and those answered on the
parked thread by ``inspect``. Whatever is wrong with a request becomes an error response, and nothing else happens.
"""

from __future__ import annotations

import hmac
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.agent.client import Client
from adbg.engine.agent.connection import Message
from adbg.engine.backends.base import Graph
from adbg.engine.backends.common.shield import surely
from adbg.engine.capture.captures import capture_at
from adbg.engine.capture.dump import dump
from adbg.engine.collectives.answer import answer as collectives_answer
from adbg.engine.errors import AdbgError, NotStopped, ProtocolError
from adbg.engine.inspect.digest import position
from adbg.engine.inspect.dispatch import Answers
from adbg.engine.inspect.memory.answer import memory
from adbg.engine.inspect.stack import running_stack
from adbg.engine.inspect.tables import info, thread_states
from adbg.engine.inspect.threads import Threads
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as p
from adbg.engine.session.parking import Parked
from adbg.engine.session.stepping import Kind

if TYPE_CHECKING:
    from adbg.engine.agent.agent import Agent

RESUMING: dict[str, Kind | None] = {
    "continue": None,
    "next": Kind.NEXT,
    "stepIn": Kind.STEP,
    "stepOut": Kind.FINISH,
    "adbg/after": Kind.AFTER,
    "adbg/until": Kind.UNTIL,
}
FILTERS = ("error", "nan", "inf", "nonfinite", "backward")


_TYPED = ("repl", "statement")  # contexts of ``evaluate`` in which the user has something computed


class Requests:
    """The dispatch table of one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._session = agent.session
        threads = Threads(agent.session)
        self._here: dict[str, Callable[[Client, Any], Any]] = {
            "setExceptionBreakpoints": lambda client, a: p.Breakpoints(self._session.set_filters(a.filters)),
            "pause": self._pause,
            "threads": lambda client, a: p.ThreadsBody(thread_states(self._session)),
            "adbg/allThreads": lambda client, a: threads.all(),
            "adbg/threadNames": lambda client, a: threads.names(a),
            "adbg/vlog": self._vlog,
            "adbg/aids": lambda client, a: agent.aids.answer(a.name, a.value),
            "adbg/record": lambda client, a: agent.record.switch(a.on),
            "adbg/stacks": self._stacks,
            "adbg/frames": self._frames,
            "adbg/state": lambda client, a: agent.ranks.state(),
            "adbg/groupTimeouts": lambda client, a: p.GroupTimeoutsBody(self._group_timeouts(a.seconds)),
            "adbg/collectives": lambda client, a: collectives_answer(agent.session, agent.ledger, agent.rank, a),
        }
        self._special: dict[str, Callable[[Client, Message, Any], None]] = {
            "initialize": self._initialize,
            "configurationDone": self._configuration_done,
            "disconnect": self._disconnect,
            "terminate": self._terminate,
            "setFunctionBreakpoints": self._set_breakpoints,
            "stackTrace": self._stack_trace,
            "adbg/info": self._info,
            "adbg/memory": self._memory,
            "adbg/capture": self._capture,
            "adbg/dump": self._dump,
            "adbg/digest": self._digest,
            "adbg/profile": self._profile,
            "adbg/diagnose": self._diagnose,
        }

    def commands(self) -> set[str]:
        """Every command that gets an answer."""
        return {*self._here, *self._special, *RESUMING, *Answers.commands()}

    def handle(self, client: Client, message: Message) -> None:
        """Answer one message of the client."""
        try:
            command, arguments = self._read(client, message)
            if command in self._special:
                self._special[command](client, message, arguments)
            elif command in self._here:
                client.respond(message, self._here[command](client, arguments))
            elif command in RESUMING:
                self._resume(client, message, RESUMING[command], getattr(arguments, "spec", ""))
            else:
                self._at_stop(client, message, command, arguments)
        except AdbgError as error:
            client.refuse(message, error)
        except own(Exception) as error:  # a defect of adbg must not cost the session
            client.refuse(message, error)

    def _read(self, client: Client, message: Message) -> tuple[str, Any]:
        command = message.get("command")
        if not isinstance(message.get("seq"), int) or message.get("type") != "request" or not isinstance(command, str):
            raise ProtocolError("a message must have seq, type 'request' and a command")
        if not client.initialized and command != "initialize":
            client.connection.close_after_answer()
            raise ProtocolError(f"{command!r} before 'initialize'", "initialize with the session's token")
        if command not in p.REQUESTS:
            raise ProtocolError(f"unknown request {command!r}", "do front end and program run the same adbg?")
        arguments = message.get("arguments")
        return command, wire.from_json(p.REQUESTS[command][0], {} if arguments is None else arguments, "arguments")

    # ---- start and end

    def _initialize(self, client: Client, message: Message, arguments: p.Initialize) -> None:
        if client.initialized:
            raise ProtocolError("initialize came twice")
        if not hmac.compare_digest(arguments.token.encode(), self._agent.config.token.encode()):
            client.connection.close_after_answer()
            raise ProtocolError("wrong token", "only the front end that made this session may speak to it")
        try:
            self._agent.take(client)
        except ProtocolError:
            client.connection.close_after_answer()
            raise
        if arguments.stacks is not None:
            self._session.set_stacks(arguments.stacks)
        filters = [{"filter": name, "label": name, "default": name == "error"} for name in FILTERS]
        body = p.InitializeBody(exceptionBreakpointFilters=filters, adbg=self._agent.process_info())
        client.respond(message, body)
        client.adbg = arguments.adbg
        client.initialized = True
        self._session.attach()
        client.event(p.Initialized())
        self._agent.joined()

    def _configuration_done(self, client: Client, message: Message, arguments: p.ConfigurationDone) -> None:
        if client.configured:
            raise ProtocolError("configurationDone came twice")
        client.configured = True
        self._session.stop_on_entry(arguments.stop_on_entry)
        client.respond(message, p.Empty())
        self._agent.configured.set()

    def _disconnect(self, client: Client, message: Message, arguments: p.Disconnect) -> None:
        client.respond(message, p.Empty())
        self._leave(client, arguments.terminateDebuggee)

    def _terminate(self, client: Client, message: Message, arguments: p.Terminate) -> None:
        client.respond(message, p.Empty())
        self._leave(client, True)

    def _leave(self, client: Client, terminate: bool) -> None:
        client.connection.flush(0.5)
        self._agent.let_go()
        self._agent.configured.set()
        if terminate:
            os.kill(os.getpid(), signal.SIGTERM)
        client.connection.close()

    # ---- without a tensor

    def _pause(self, client: Client, arguments: p.Pause) -> p.Empty:
        self._session.pause(arguments.on)
        return p.Empty()

    def _vlog(self, client: Client, arguments: p.Vlog) -> p.VlogBody:
        levels = self._agent.log_levels
        return self._session.change(lambda: levels.set(arguments.levels, arguments.at, arguments.backward))

    def _frames(self, client: Client, arguments: p.Frames) -> p.Empty:
        self._session.change(lambda: SHOWN.set(arguments.all))
        return p.Empty()

    def _group_timeouts(self, seconds: float | None) -> list[p.GroupTimeout]:
        groups = self._agent.ranks.groups
        return groups.listing() if seconds is None else groups.at_least(seconds)

    def _stacks(self, client: Client, arguments: p.Stacks) -> p.StacksBody:
        if arguments.on is not None:
            self._agent.diagnosing.stacks = False  # asked for: they stay when diagnosis ends
            self._session.set_stacks(arguments.on)
        return p.StacksBody(self._session.stacks)

    def _set_breakpoints(self, client: Client, message: Message, arguments: p.SetFunctionBreakpoints) -> None:
        states = self._session.set_breakpoints(arguments.breakpoints)

        def count(parked: Parked) -> None:
            """At a stop there is a graph: count what each breakpoint takes in it."""
            graph = parked.point.graph
            if graph is not None:
                self._session.table.match(graph)
            client.respond(message, p.Breakpoints(self._session.states_after(states)))

        self._session.ask(
            _answering(client, message, count), lambda error: client.respond(message, p.Breakpoints(states))
        )

    def _stack_trace(self, client: Client, message: Message, arguments: p.StackTrace) -> None:
        parked = self._session.parked
        if parked is not None and arguments.threadId in (0, parked.thread):
            self._at_stop(client, message, "stackTrace", arguments)
        else:
            client.respond(message, running_stack(arguments))

    def _info(self, client: Client, message: Message, arguments: p.Info) -> None:
        def running(_: AdbgError) -> None:
            try:
                client.respond(message, info(self._session, arguments.what, None))
            except own(Exception) as error:
                client.refuse(message, error)

        self._at_stop(client, message, "adbg/info", arguments, running)

    def _memory(self, client: Client, message: Message, arguments: p.Memory) -> None:
        watch = self._agent.memory

        def running(_: AdbgError) -> None:
            client.respond(message, memory(self._session, watch, None, arguments))

        def at_stop(parked: Parked) -> None:
            client.respond(message, memory(self._session, watch, self._answers(parked).stop, arguments))

        self._session.ask(_answering(client, message, at_stop), running)

    def _digest(self, client: Client, message: Message, arguments: p.Digest) -> None:
        if not arguments.what:
            client.respond(message, position(self._session))
            return

        def later(error: AdbgError) -> None:
            if arguments.wait <= 0:
                client.refuse(message, error)
                return
            try:
                self._agent.digests.wait_for(
                    arguments,
                    lambda body: client.respond(message, body),
                    lambda problem: client.refuse(message, problem),
                )
            except AdbgError as problem:
                client.refuse(message, problem)

        self._at_stop(client, message, "adbg/digest", arguments, later)

    def _profile(self, client: Client, message: Message, arguments: p.Profile) -> None:
        if arguments.action != "start" or arguments.region.kind != "node":
            client.respond(message, self._agent.profile(arguments))
            return

        def repeat(parked: Parked) -> None:
            client.respond(message, self._agent.profile(arguments, parked.point))

        self._session.ask(_answering(client, message, repeat), lambda error: client.refuse(message, error))

    def _diagnose(self, client: Client, message: Message, arguments: p.Diagnose) -> None:
        """At a stop the detectors look on the thread that stands there; else what is known is told."""

        def look(parked: Parked) -> None:
            client.respond(message, self._agent.diagnosing.answer(arguments, parked.point))

        def tell(_: AdbgError) -> None:
            client.respond(message, self._agent.diagnosing.answer(arguments))

        self._session.ask(_answering(client, message, look), tell)

    def _capture(self, client: Client, message: Message, arguments: p.Capture) -> None:
        captures = self._agent.captures
        if arguments.cancel or not arguments.region:
            states = captures.cancel(arguments.name) if arguments.cancel else captures.listing()
            client.respond(message, p.CaptureBody(states))
            return
        wanted = captures.wanted(arguments)

        def now(parked: Parked) -> None:
            client.respond(message, p.CaptureBody([capture_at(parked, captures, wanted)]))

        def later(_: AdbgError) -> None:
            try:
                client.respond(message, p.CaptureBody([captures.wait_for(wanted)]))
            except AdbgError as error:
                client.refuse(message, error)

        self._session.ask(_answering(client, message, now), later)

    # ---- on the parked thread

    def _dump(self, client: Client, message: Message, arguments: p.Dump) -> None:
        def write(parked: Parked) -> None:
            client.respond(message, dump(parked.point, arguments))

        self._session.ask(_answering(client, message, write), lambda error: client.refuse(message, error))

    def _resume(self, client: Client, message: Message, kind: Kind | None, spec: str) -> None:
        body = p.ContinueBody() if message["command"] == "continue" else p.Empty()

        def go(parked: Parked) -> None:
            self._session.resume(parked, kind, spec, lambda: client.respond(message, body))

        self._session.ask(_answering(client, message, go), lambda error: client.refuse(message, error))

    def _at_stop(
        self,
        client: Client,
        message: Message,
        command: str,
        arguments: Any,
        running: Callable[[AdbgError], None] | None = None,
    ) -> None:
        """``running`` answers while the program is not stopped; without it the request is refused then."""

        def answer(parked: Parked) -> None:
            answers = self._answers(parked)
            typed = command == "setExpression" or (command == "evaluate" and arguments.context in _TYPED)
            self._agent.log_levels.quiet(not typed)  # what the user has run may write its records
            try:
                body = answers.dispatch(command, arguments)
            finally:
                self._agent.log_levels.quiet(True)
            client.respond(message, body)

        refuse = running or (lambda error: client.refuse(message, error))
        self._session.ask(_answering(client, message, answer), refuse)

    def _answers(self, parked: Parked) -> Answers:
        if parked.answers is None:
            parked.answers = Answers(parked.point, self._session, _Marks(self._session.table))
        found: Answers = parked.answers
        return found


class _Marks:
    """Which breakpoints take the nodes of a graph page."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self._graph: Graph | None = None
        self._index: dict[int, int] = {}

    def __call__(self, graph: Graph, keys: Sequence[int]) -> Mapping[int, tuple[int, ...]]:
        if not self._table.armed:
            return {}
        if graph is not self._graph:
            self._graph = graph
            self._index = {key: index for index, key in enumerate(graph.order(), 1)}
        marks = {}
        for key in keys:
            ids = self._table.matching_ids(
                graph.describe(key), lambda key=key: graph.forward_stack(key)[0], self._index.get(key, 0)
            )
            if ids:
                marks[key] = ids
        return marks


def _answering(client: Client, message: Message, job: Callable[[Parked], None]) -> Callable[[Parked], None]:
    """``job``, with whatever it raises made into the answer. An interrupt ends the job, not the stop."""

    def run(parked: Parked) -> None:
        try:
            job(parked)
        except AdbgError as error:
            client.refuse(message, error)
        except KeyboardInterrupt:
            client.refuse(message, NotStopped("interrupted", "the program is still stopped: ask again, or continue"))
        except own(BaseException) as error:  # SystemExit of an expression too
            client.refuse(message, error)
        except BaseException as error:
            text = f"the program's own signal handler raised {type(error).__name__}"
            surely(client.refuse, message, NotStopped(text, "the stop is over, the program goes on with that"))
            raise

    return run
