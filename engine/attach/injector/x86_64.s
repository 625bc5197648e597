.intel_syntax noprefix
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
  mov [rip+start+DATA+RESULT], rax
  mov rsp, [rip+start+DATA+FRAME]
  mov eax, 15
  syscall
  ud2
.balign 64
pending:
  push rbx
  push r12
  sub rsp, 8
  lea rbx, [rip+start+DATA]
  xor r12d, r12d
  mov eax, 1
  mov ecx, 2
  lock cmpxchg dword ptr [rbx+STATE], ecx
  jne 3f
  cmp qword ptr [rbx+ENTER], 0
  je 1f
  call [rbx+TSGET]
  mov rdi, rax
  call [rbx+ENTER]
1:
  call run
  mov r12d, eax
  cmp qword ptr [rbx+ENTER], 0
  je 2f
  call [rbx+TSGET]
  mov rdi, rax
  call [rbx+LEAVE]
2:
  mov eax, 3
  sub eax, r12d
  mov dword ptr [rbx+STATE], eax
3:
  mov eax, r12d
  mov dword ptr [rbx+QUEUED], 0
  add rsp, 8
  pop r12
  pop rbx
  ret
.balign 64
thread:
  push rbx
  push r12
  sub rsp, 8
  lea rbx, [rip+start+DATA]
  mov eax, 14
  mov edi, 2
  lea rsi, [rbx+MASK]
  xor edx, edx
  mov r10d, 8
  syscall
  mov eax, 186
  syscall
  mov dword ptr [rbx+TID], eax
  call [rbx+SELF]
  mov rdi, rax
  call [rbx+DETACH]
  call [rbx+ENSURE]
  mov r12d, eax
  mov eax, 1
  mov ecx, 2
  lock cmpxchg dword ptr [rbx+STATE], ecx
  jne 5f
  call run
  test eax, eax
  mov eax, 3
  jns 4f
  call [rbx+CLEAR]
  mov eax, 4
4:
  mov dword ptr [rbx+STATE], eax
5:
  mov edi, r12d
  call [rbx+RELEASE]
  xor eax, eax
  add rsp, 8
  pop r12
  pop rbx
  ret
.balign 64
run:
  push r12
  push r13
  sub rsp, 8
  call [rbx+DICT]
  test rax, rax
  je 6f
  mov r12, rax
  lea rdi, [rbx+CODE]
  mov esi, 257
  mov rdx, r12
  mov rcx, r12
  call [rbx+RUN]
  mov r13, rax
  mov rdi, r12
  call [rbx+DECREF]
  test r13, r13
  je 6f
  mov rdi, r13
  call [rbx+DECREF]
  xor eax, eax
  jmp 7f
6:
  mov eax, -1
7:
  add rsp, 8
  pop r13
  pop r12
  ret
