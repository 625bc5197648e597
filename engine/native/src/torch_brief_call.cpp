#include "torch_brief_call.h"

#include <structmember.h>

#include <cstddef>
#include <utility>

namespace adbg {

PyTypeObject* call_type = nullptr;

namespace {

void call_free(PyObject* self) {
  Call* call = reinterpret_cast<Call*>(self);
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(call->facts);
  Py_CLEAR(call->begun);
  delete std::exchange(call->record, nullptr);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef call_members[] = {
    {"number", T_ULONGLONG, offsetof(Call, number), READONLY, nullptr},
    {"iteration", T_ULONGLONG, offsetof(Call, iteration), READONLY, nullptr},
    {"thread", T_ULONGLONG, offsetof(Call, thread), READONLY, nullptr},
    {"age", T_ULONGLONG, offsetof(Call, age), READONLY, "`BriefCalls.age` at its begin"},
    {"began", T_DOUBLE, offsetof(Call, began), READONLY, "seconds since the epoch"},
    {"since", T_LONGLONG, offsetof(Call, since), READONLY, "time.perf_counter_ns of its begin"},
    {"grad_mode", T_BOOL, offsetof(Call, grad_mode), READONLY, nullptr},
    {"facts", T_OBJECT, offsetof(Call, facts), READONLY, "what `allow` was given, or None"},
    {"begun", T_OBJECT, offsetof(Call, begun), 0, "for the caller's use"},
    {nullptr, 0, 0, 0, nullptr}};
PyObject* call_events(PyObject* self, void*) {
  const Record* record = reinterpret_cast<Call*>(self)->record;
  if (record) return events_capsule(record->events);
  Py_RETURN_NONE;
}

PyGetSetDef call_getset[] = {{"events", call_events, nullptr, "as of `torch_events_begin`; None: no node is recorded", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot call_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(call_free)},
                            {Py_tp_members, call_members},
                            {Py_tp_getset, call_getset},
                            {0, nullptr}};
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
#else
constexpr unsigned kFlags = Py_TPFLAGS_DEFAULT;
#endif
PyType_Spec call_spec = {"adbg._native.BriefCall", sizeof(Call), 0, kFlags, call_slots};

}  // namespace

int add_call_type(PyObject* module) {
  if (!call_type) call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&call_spec));
  if (!call_type) return -1;
  Py_INCREF(call_type);
  return PyModule_AddObject(module, "BriefCall", reinterpret_cast<PyObject*>(call_type));
}

}  // namespace adbg
