.set DATA, 0x1000
.set STATE, 0x00
.set QUEUED, 0x04
.set TID, 0x08
.set RESULT, 0x10
.set FRAME, 0x18
.set MASK, 0x20
.set F, 0x40
.set DICT, F+0
.set RUN, F+8
.set DECREF, F+16
.set CLEAR, F+24
.set ENSURE, F+32
.set RELEASE, F+40
.set TSGET, F+48
.set ENTER, F+56
.set LEAVE, F+64
.set SELF, F+72
.set DETACH, F+80
.set CODE, 0x200
.text
start:
.skip 0x40, 0
home:
  adr x9, start+DATA
  str x0, [x9, RESULT]
1:
  adr x9, start+DATA
  ldr x9, [x9, FRAME]
  mov sp, x9
  mov x8, 139
  svc 0
  b 1b
.balign 64
pending:
  stp x29, x30, [sp, -32]!
  stp x19, x20, [sp, 16]
  mov x29, sp
  adr x19, start+DATA
  mov w20, 0
  bl claim
  cbz w0, 3f
  ldr x9, [x19, ENTER]
  cbz x9, 1f
  ldr x9, [x19, TSGET]
  blr x9
  ldr x9, [x19, ENTER]
  blr x9
1:
  bl run
  mov w20, w0
  ldr x9, [x19, LEAVE]
  cbz x9, 2f
  ldr x9, [x19, TSGET]
  blr x9
  ldr x9, [x19, LEAVE]
  blr x9
2:
  mov w9, 3
  sub w9, w9, w20
  stlr w9, [x19]
3:
  mov w0, w20
  dmb ish
  str wzr, [x19, QUEUED]
  ldp x19, x20, [sp, 16]
  ldp x29, x30, [sp], 32
  ret
.balign 64
thread:
  stp x29, x30, [sp, -32]!
  stp x19, x20, [sp, 16]
  mov x29, sp
  adr x19, start+DATA
  mov x0, 2
  add x1, x19, MASK
  mov x2, 0
  mov x3, 8
  mov x8, 135
  svc 0
  mov x8, 178
  svc 0
  str w0, [x19, TID]
  ldr x9, [x19, SELF]
  blr x9
  ldr x9, [x19, DETACH]
  blr x9
  ldr x9, [x19, ENSURE]
  blr x9
  mov w20, w0
  bl claim
  cbz w0, 5f
  bl run
  mov w9, 3
  tbz w0, 31, 4f
  ldr x9, [x19, CLEAR]
  blr x9
  mov w9, 4
4:
  stlr w9, [x19]
5:
  mov w0, w20
  ldr x9, [x19, RELEASE]
  blr x9
  mov x0, 0
  ldp x19, x20, [sp, 16]
  ldp x29, x30, [sp], 32
  ret
.balign 64
claim:
  ldaxr w9, [x19]
  cmp w9, 1
  b.ne 6f
  mov w9, 2
  stlxr w10, w9, [x19]
  cbnz w10, claim
  mov w0, 1
  ret
6:
  clrex
  mov w0, 0
  ret
.balign 64
run:
  stp x29, x30, [sp, -32]!
  stp x20, x21, [sp, 16]
  mov x29, sp
  ldr x9, [x19, DICT]
  blr x9
  cbz x0, 7f
  mov x20, x0
  add x0, x19, CODE
  mov w1, 257
  mov x2, x20
  mov x3, x20
  ldr x9, [x19, RUN]
  blr x9
  mov x21, x0
  mov x0, x20
  ldr x9, [x19, DECREF]
  blr x9
  cbz x21, 7f
  mov x0, x21
  ldr x9, [x19, DECREF]
  blr x9
  mov w0, 0
  b 8f
7:
  mov w0, -1
8:
  ldp x20, x21, [sp, 16]
  ldp x29, x30, [sp], 32
  ret
