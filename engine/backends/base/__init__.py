"""The contract of a backend: what the engine asks of a framework, and what a framework reports. No framework here."""

from adbg.engine.backends.base.backend import Backend, Capabilities, DoctorLine, DumpDialect
from adbg.engine.backends.base.collectives import CollectiveTaps, KnownGroup, LedgerSink, Method
from adbg.engine.backends.base.forward import ForwardTimer, ForwardTimes
from adbg.engine.backends.base.graph import CreationWatch, Graph, SavedValue, Stray
from adbg.engine.backends.base.hooks import BackwardCall, Hidden, HookPlan, HookSink, Part, ended_well
from adbg.engine.backends.base.native import Aid, Aids, NativeVlog
from adbg.engine.backends.base.observing import (
    FunctionCall,
    HookCall,
    LoaderEvent,
    ModuleCall,
    Need,
    Observation,
    OperatorCall,
    OptimizerEvent,
    Probe,
    RecomputeCall,
    SlotCheck,
    Tap,
    Watcher,
)

__all__ = [
    "Aid",
    "Aids",
    "Backend",
    "BackwardCall",
    "Capabilities",
    "CollectiveTaps",
    "CreationWatch",
    "DoctorLine",
    "DumpDialect",
    "ForwardTimer",
    "ForwardTimes",
    "FunctionCall",
    "Graph",
    "Hidden",
    "HookCall",
    "HookPlan",
    "HookSink",
    "KnownGroup",
    "LedgerSink",
    "LoaderEvent",
    "Method",
    "ModuleCall",
    "NativeVlog",
    "Need",
    "Observation",
    "OperatorCall",
    "OptimizerEvent",
    "Part",
    "Probe",
    "RecomputeCall",
    "SavedValue",
    "SlotCheck",
    "Stray",
    "Tap",
    "Watcher",
    "ended_well",
]
