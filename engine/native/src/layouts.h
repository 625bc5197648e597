// Where CPython keeps the frames of a thread: private, and another one in every version. What is wrong here is found by
// the self-check of load.py, which compares with sys._getframe.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE 1
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <internal/pycore_frame.h>
#include <internal/pycore_code.h>
#pragma GCC diagnostic pop
#endif

namespace adbg {

#if PY_VERSION_HEX < 0x030B0000  // 3.10: every frame is an object

using Frame = PyFrameObject;
inline Frame* innermost(PyThreadState* state) { return state->frame; }
inline Frame* caller(Frame* frame) { return frame->f_back; }
inline bool counts(Frame*) { return true; }
inline PyCodeObject* code_of(Frame* frame) { return frame->f_code; }
inline int lasti_of(Frame* frame) { return frame->f_lasti * 2; }  // counted in instructions of two bytes
inline uint64_t place_of(Frame* frame) { return reinterpret_cast<uint64_t>(frame->f_code) + frame->f_lasti; }
inline PyObject* first_local(Frame* frame) { return frame->f_localsplus[0]; }
constexpr bool kFramesKnown = true;

#elif PY_VERSION_HEX < 0x030D0000  // 3.11, 3.12

using Frame = _PyInterpreterFrame;
inline Frame* innermost(PyThreadState* state) { return state->cframe->current_frame; }
inline Frame* caller(Frame* frame) { return frame->previous; }
#if PY_VERSION_HEX < 0x030C0000
inline bool counts(Frame* frame) { return !_PyFrame_IsIncomplete(frame); }
#else
inline bool counts(Frame* frame) {  // not what C puts below a call from C, nor a frame that is being made
  return frame->owner != FRAME_OWNED_BY_CSTACK &&
         (frame->owner == FRAME_OWNED_BY_GENERATOR ||
          frame->prev_instr >= _PyCode_CODE(frame->f_code) + frame->f_code->_co_firsttraceable);
}
#endif
inline PyCodeObject* code_of(Frame* frame) { return frame->f_code; }
inline int lasti_of(Frame* frame) {
  return static_cast<int>(reinterpret_cast<char*>(frame->prev_instr) -
                          reinterpret_cast<char*>(_PyCode_CODE(frame->f_code)));
}
// Tells code and instruction at once: it points into the code object.
inline uint64_t place_of(Frame* frame) { return reinterpret_cast<uint64_t>(frame->prev_instr); }
inline PyObject* first_local(Frame* frame) { return frame->localsplus[0]; }
constexpr bool kFramesKnown = true;

#elif PY_VERSION_HEX < 0x030E0000  // 3.13

using Frame = _PyInterpreterFrame;
inline Frame* innermost(PyThreadState* state) { return state->current_frame; }
inline Frame* caller(Frame* frame) { return frame->previous; }
inline PyCodeObject* code_of(Frame* frame) { return reinterpret_cast<PyCodeObject*>(frame->f_executable); }
inline bool counts(Frame* frame) {
  return frame->owner != FRAME_OWNED_BY_CSTACK &&
         (frame->owner == FRAME_OWNED_BY_GENERATOR ||
          frame->instr_ptr >= _PyCode_CODE(code_of(frame)) + code_of(frame)->_co_firsttraceable);
}
inline int lasti_of(Frame* frame) {
  return static_cast<int>(reinterpret_cast<char*>(frame->instr_ptr) -
                          reinterpret_cast<char*>(_PyCode_CODE(code_of(frame))));
}
inline uint64_t place_of(Frame* frame) { return reinterpret_cast<uint64_t>(frame->instr_ptr); }
inline PyObject* first_local(Frame* frame) { return frame->localsplus[0]; }
constexpr bool kFramesKnown = true;

#else  // newer ones: not written; stacks stay with the Python hooks

struct Frame;
inline Frame* innermost(PyThreadState*) { return nullptr; }
inline Frame* caller(Frame*) { return nullptr; }
inline bool counts(Frame*) { return false; }
inline PyCodeObject* code_of(Frame*) { return nullptr; }
inline int lasti_of(Frame*) { return 0; }
inline uint64_t place_of(Frame*) { return 0; }
inline PyObject* first_local(Frame*) { return nullptr; }
constexpr bool kFramesKnown = false;

#endif

inline bool python_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

}  // namespace adbg
