#include "torch_brief.h"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "guarded.h"
#include "layouts.h"
#include "torch_brief_call.h"
#include "torch_brief_pass.h"
#include "torch_brief_state.h"
#include "torch_engine.h"
#include "torch_events.h"
#include "torch_nodes.h"

namespace adbg {
namespace {

constexpr size_t kMostNodes = 1 << 16;  // of a call whose nodes may wait

PyObject* calls_begin(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  follow_next(nullptr);  // one that was about to be followed and did not begin
  failed_forget();
  if (count == 2 && !calls->aside && (calls->state->all || !calls->state->known.empty())) {
    bool foreign = false;
    try {
      if (Call* call = pass(calls, arguments[0], arguments[1], foreign)) return reinterpret_cast<PyObject*>(call);
    } catch (const std::bad_alloc&) {
    }
    if (foreign) return nullptr;
    PyErr_Clear();
  }
  calls->state->asked = monotonic();
  return PyObject_Vectorcall(calls->begin, arguments, static_cast<size_t>(count), nullptr);
}

// The facts that tell of a call whose nodes are recorded, and their rows; nullptr, perhaps with an exception set: it is not
// as those before it were.
PyObject* recorded(State& state, const Record& record, Rows& rows) {
  if (!events_rows(record.events, record.keys, record.order, rows)) return nullptr;
  if (rows.lost) return nullptr;
  for (const Known& known : state.known)
    for (const Known::Shapes& each : known.shapes)
      if (known.id == record.known && each.shapes == rows.shapes && each.count == rows.count) return each.facts;
  return nullptr;
}

// The end of a call, each of whose nodes was written down.
PyObject* end_recorded(Calls* calls, Call* call, double us) {
  State& state = *calls->state;
  Rows rows;
  state.was_long = us > kLongRecorded;
  PyObject* facts = call->age == state.age ? recorded(state, *call->record, rows) : nullptr;
  if (!facts) {
    PyErr_Clear();
    Py_XDECREF(rows.bytes);
    return PyObject_CallFunction(calls->late, "Od", reinterpret_cast<PyObject*>(call), us);
  }
  give_back(state, std::move(call->record->keys));
  delete std::exchange(call->record, nullptr);
  spend(state, call->thread, call->last);
  state.listeners.note(call->number, call->began, epoch());
  state.bytes += static_cast<size_t>(PyBytes_GET_SIZE(rows.bytes));
  Py_INCREF(facts);
  state.runs.push_back({call->number, call->iteration, call->thread, call->began, us, facts, rows.bytes});
  if (state.runs.size() == 1 && !state.listeners.woken()) return nullptr;
  Py_RETURN_NONE;
}

// A call that Python was asked about ends: whether it was a long one. Otherwise one hiccup of the machine would have Python
// asked about every call from there on.
void note_asked(State& state) {
  const bool recorded = std::any_of(state.known.begin(), state.known.end(), [](const Known& each) { return each.order; });
  const double us = static_cast<double>(monotonic() - state.asked) / 1000;
  state.was_long = us > (recorded ? kLongRecorded : kLong);
}

PyObject* calls_end(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  if (count != 2 || Py_TYPE(arguments[0]) != call_type) {
    note_asked(*calls->state);
    return PyObject_Vectorcall(calls->end, arguments, static_cast<size_t>(count), nullptr);
  }
  Call* call = reinterpret_cast<Call*>(arguments[0]);
  if (call->begun != Py_None) {
    PyObject* both[] = {call->begun, arguments[1]};
    Py_INCREF(both[0]);
    PyObject* answer = PyObject_Vectorcall(calls->end, both, 2, nullptr);
    Py_DECREF(both[0]);
    return answer;
  }
  State& state = *calls->state;
  const double us = static_cast<double>(monotonic() - call->since) / 1000;
  try {
    if (call->record) return end_recorded(calls, call, us);
    state.was_long = us > kLong;
    spend(state, call->thread, call->last);
    if (call->facts == Py_None) Py_RETURN_NONE;
    if (call->age == state.age) {
      state.listeners.note(call->number, call->began, epoch());
      state.runs.push_back({call->number, call->iteration, call->thread, call->began, us, call->facts, nullptr});
      Py_INCREF(call->facts);
      if (state.runs.size() == 1 && !state.listeners.woken()) return nullptr;
      Py_RETURN_NONE;
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return PyObject_CallFunction(calls->late, "Od", arguments[0], us);  // nobody may ask any more
}

// allow(age, entry, code, accumulate, watched, survey, facts, nodes) -> whether calls like this one are passed over from now on: made by
// the frames above the caller's caller out to the first one of `code`. Not where the age is another than it was then.
// `nodes`: None, or (alike, shapes, count, order): each of their nodes is recorded, and these are the facts where the
// gradients have the same shapes.
PyObject* calls_allow(PyObject* self, PyObject* arguments) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  State& state = *calls->state;
  unsigned long long age, types, one, other;
  PyObject *entry, *code, *facts, *recorded = Py_None, *order = nullptr;
  unsigned long long alike = 0, shapes = 0;
  Py_ssize_t rows = 0;
  int accumulate, watched;
  Py_ssize_t nodes;
  if (!PyArg_ParseTuple(arguments, "KO!O!pp(nKKK)O|O", &age, &PyCode_Type, &entry, &PyCode_Type, &code, &accumulate,
                        &watched, &nodes, &types, &one, &other, &facts, &recorded))
    return nullptr;
  if (recorded != Py_None) {
    if (!PyArg_ParseTuple(recorded, "KKnS", &alike, &shapes, &rows, &order)) return nullptr;
    if (nodes > static_cast<Py_ssize_t>(kMostNodes) || PyBytes_GET_SIZE(order) != nodes * 4) Py_RETURN_FALSE;
  }
  if (age != state.age || !state.listeners.any()) Py_RETURN_FALSE;
  Known known{{}, {}, {}, accumulate != 0, watched != 0, facts, order, alike, 0, {}};
  known.survey.nodes = static_cast<size_t>(nodes);
  known.survey.types = types;
  known.survey.one = one;
  known.survey.other = other;
  try {
    return learn(state, std::move(known), {shapes, static_cast<size_t>(rows), facts}, entry, code);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* calls_listen(PyObject* self, PyObject* arguments) {
  PyObject *asks, *zeros, *wake, *cell;
  if (!PyArg_ParseTuple(arguments, "OOOO", &asks, &zeros, &wake, &cell)) return nullptr;
  if (!reinterpret_cast<Calls*>(self)->state->listeners.set(asks, zeros, wake, cell)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* calls_allow_all(PyObject* self, PyObject*) {
  reinterpret_cast<Calls*>(self)->state->all = node_layout.sequence >= 0;
  Py_RETURN_NONE;
}

PyObject* calls_forbid(PyObject* self, PyObject*) {
  forget(reinterpret_cast<Calls*>(self));
  Py_RETURN_NONE;
}

PyObject* calls_take(PyObject* self, PyObject*) {
  std::vector<Run> runs;
  runs.swap(reinterpret_cast<Calls*>(self)->state->runs);
  reinterpret_cast<Calls*>(self)->state->bytes = 0;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(runs.size()));
  for (size_t i = 0; i < runs.size(); i++) {
    const Run& run = runs[i];
    PyObject* rows = run.rows ? run.rows : Py_NewRef(Py_None);
    PyObject* row = list ? Py_BuildValue("(KKKddNN)", run.number, run.iteration, run.thread, run.began, run.us, run.facts, rows)
                         : nullptr;
    if (!list) Py_DECREF(run.facts), Py_DECREF(rows);
    if (row) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), row);
    else Py_CLEAR(list);
  }
  return list;
}

PyObject* calls_next(PyObject* self, PyObject* outermost) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  const int is = PyObject_IsTrue(outermost);
  if (is < 0) return nullptr;
  calls->count++;
  if (is) calls->iteration++;
  return PyLong_FromUnsignedLongLong(calls->count);
}

PyObject* calls_used_up(PyObject* self, PyObject* arguments) {
  unsigned long thread;
  long long last;
  if (!PyArg_ParseTuple(arguments, "kL", &thread, &last)) return nullptr;
  try {
    spend(*reinterpret_cast<Calls*>(self)->state, thread, last);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* calls_last(PyObject* self, PyObject* number) {
  const unsigned long thread = PyLong_AsUnsignedLong(number);
  if (PyErr_Occurred()) return nullptr;
  for (const auto& each : reinterpret_cast<Calls*>(self)->state->lasts)
    if (each.first == thread) return PyLong_FromLongLong(each.second);
  Py_RETURN_NONE;
}

PyObject* calls_age(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(reinterpret_cast<Calls*>(self)->state->age);
}

PyObject* calls_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *begin, *end, *late, *parts;
  if (!PyArg_ParseTuple(arguments, "OOOO!", &begin, &end, &late, &PyTuple_Type, &parts)) return nullptr;
  if (PyTuple_GET_SIZE(parts) != kParts) {
    PyErr_SetString(PyExc_ValueError, "seven parts of torch");
    return nullptr;
  }
  Calls* calls = reinterpret_cast<Calls*>(type->tp_alloc(type, 0));
  if (!calls) return nullptr;
  calls->state = new (std::nothrow) State;
  if (!calls->state) {
    Py_DECREF(calls);
    return PyErr_NoMemory();
  }
  calls->state->runs.reserve(kMostRuns);
  calls->begin = Py_NewRef(begin);
  calls->end = Py_NewRef(end);
  calls->late = Py_NewRef(late);
  calls->parts = Py_NewRef(parts);
  return reinterpret_cast<PyObject*>(calls);
}

int calls_traverse(PyObject* self, visitproc visit, void* arg) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(calls->begin);
  Py_VISIT(calls->end);
  Py_VISIT(calls->late);
  Py_VISIT(calls->parts);
  return 0;
}

int calls_clear(PyObject* self) {
  Calls* calls = reinterpret_cast<Calls*>(self);
  if (calls->state) forget(calls);
  // The functions stay: whoever still holds this object may call it.
  return 0;
}

void calls_free(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Calls* calls = reinterpret_cast<Calls*>(self);
  PyTypeObject* type = Py_TYPE(self);
  if (calls->state) {
    forget(calls);
    for (Run& run : calls->state->runs) {
      Py_DECREF(run.facts);
      Py_XDECREF(run.rows);
    }
    delete calls->state;
  }
  Py_CLEAR(calls->begin);
  Py_CLEAR(calls->end);
  Py_CLEAR(calls->late);
  Py_CLEAR(calls->parts);
  type->tp_free(self);
  Py_DECREF(type);
}

template <class F>
PyCFunction as_method(F function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef calls_methods[] = {
    {"begin", as_method(calls_begin), METH_FASTCALL, "(args, kwargs) -> what `end` takes"},
    {"end", as_method(calls_end), METH_FASTCALL, "(what `begin` returned, result)"},
    {"allow", guarded<calls_allow>, METH_VARARGS,
     "(age, code of the entry, code of the user's line, accumulate, watched, survey, facts, nodes=None) -> bool"},
    {"listen", guarded<calls_listen>, METH_VARARGS, "(asks, zeros, wake, cell): calls may be passed over; see listeners.h"},
    {"allow_all", guarded<calls_allow_all>, METH_NOARGS, "all calls are passed over and not written down"},
    {"forbid", guarded<calls_forbid>, METH_NOARGS, "the next call is looked at again"},
    {"take", guarded<calls_take>, METH_NOARGS, "() -> [(number, iteration, thread, began, us, facts, rows)] since the last time"},
    {"next", guarded<calls_next>, METH_O, "(outermost) -> the number of a call that is looked at"},
    {"used_up", guarded<calls_used_up>, METH_VARARGS, "(thread, number of a root whose graph a backward used up)"},
    {"last", guarded<calls_last>, METH_O, "(thread) -> the highest one, or None"},
    {nullptr, nullptr, 0, nullptr}};
PyMemberDef calls_members[] = {
    {"count", T_ULONGLONG, offsetof(Calls, count), READONLY, "calls so far"},
    {"iteration", T_ULONGLONG, offsetof(Calls, iteration), READONLY, "of them, those that were not nested"},
    {"aside", T_LONG, offsetof(Calls, aside), 0, "not 0: every call is looked at"},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef calls_getset[] = {{"age", calls_age, nullptr, "how often something was forbidden", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot calls_slots[] = {{Py_tp_new, reinterpret_cast<void*>(calls_new)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(calls_free)},
                             {Py_tp_traverse, reinterpret_cast<void*>(calls_traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(calls_clear)},
                             {Py_tp_methods, calls_methods},
                             {Py_tp_members, calls_members},
                             {Py_tp_getset, calls_getset},
                             {0, nullptr}};
PyType_Spec calls_spec = {"adbg._native.BriefCalls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                          calls_slots};

}  // namespace

int add_brief_types(PyObject* module) {
  if (learn_names() != 0 || add_call_type(module) != 0) return -1;
  PyObject* type = PyType_FromSpec(&calls_spec);
  if (!type) return -1;
  return PyModule_AddObject(module, "BriefCalls", type);
}

}  // namespace adbg
