"""Start and end of a session: who the program is, the handshake, letting it go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adbg.engine.protocol.messages.registry import PROTOCOL_VERSION, Empty, event, request


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework in the debuggee. ``capabilities`` is ``backends.base.Capabilities`` as a mapping."""

    name: str
    version: str
    capabilities: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Who the agent lives in. ``rank``: None while neither the environment nor the framework told one."""

    pid: int
    rank: int | None
    argv: list[str]
    python: str
    cwd: str
    run_dir: str  # "" when nothing is recorded
    frameworks: list[Framework] = field(default_factory=list)
    protocol: int = PROTOCOL_VERSION
    main: bool = True  # False: a Python child of the program that adbg launched
    parent: int = 0  # pid of its parent: a child of a process with the same rank is a worker of that rank
    host: str = ""  # as uname -n has it; pids, files and run_dir are those of that host


@event("adbg/hello")
@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an agent that dials out: proves that it was launched by this front end."""

    token: str
    process: ProcessInfo


@event("adbg/refused")
@dataclass(frozen=True, slots=True)
class Refused:
    """In place of ``adbg/hello``, from a process that runs already: why no agent comes there."""

    token: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class InitializeBody:
    supportsConfigurationDoneRequest: bool = True
    supportsFunctionBreakpoints: bool = True
    supportsConditionalBreakpoints: bool = True
    supportsHitConditionalBreakpoints: bool = True
    supportsSetVariable: bool = True
    supportsSetExpression: bool = True
    supportsTerminateRequest: bool = True
    supportsStepBack: bool = False
    exceptionBreakpointFilters: list[dict[str, Any]] = field(default_factory=list)
    adbg: ProcessInfo | None = None


@request("initialize", InitializeBody)
@dataclass(frozen=True, slots=True)
class Initialize:
    """``token`` must be the session's; ``adbg`` true asks for the adbg/* events."""

    adapterID: str = "adbg"
    clientID: str = ""
    token: str = ""
    adbg: bool = False
    stacks: bool | None = None  # forward stacks and module paths; None keeps the agent's setting


@request("configurationDone", Empty)
@dataclass(frozen=True, slots=True)
class ConfigurationDone:
    """Breakpoints are set; the script may start. ``stop_on_entry``: stop (reason entry) at the first backward's
    begin."""

    stop_on_entry: bool = False


@request("disconnect", Empty)
@dataclass(frozen=True, slots=True)
class Disconnect:
    """Detach: disarm everything, resume, forget the client. ``terminateDebuggee``: end the program too."""

    terminateDebuggee: bool = False


@request("terminate", Empty)
@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the program, after everything was disarmed and resumed."""


@event("initialized")
@dataclass(frozen=True, slots=True)
class Initialized:
    pass


@event("adbg/process")
@dataclass(frozen=True, slots=True)
class ProcessChanged:
    """What the hello said is different now: a child learnt its rank, or records. Sent before the call it is for."""

    process: ProcessInfo


@event("adbg/framework")
@dataclass(frozen=True, slots=True)
class FrameworkLoaded:
    """The script imported a framework; the backend is in place."""

    framework: Framework


@event("adbg/ends")
@dataclass(frozen=True, slots=True)
class ProgramEnds:
    """The program ends by itself (not when it is killed): ``iterations`` outermost backward calls began in it, counted
    also while nothing was armed."""

    iterations: int
