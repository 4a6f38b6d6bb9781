"""Kernels of a challenge in PTX, which the driver compiles for its GPU.

`fill` writes the blocks of `protocol.challenge_walk`, one in each thread; `walk` takes a walk in
each thread; `read` adds up all memory, to measure how fast it is. The target is Volta, the oldest
architecture of GPUs that are rented out; drivers compile it for all later ones.

Source: NVIDIA, "Parallel Thread Execution ISA".
"""

from protocol.challenge_walk import BLOCK_WORDS, FIRST_FACTOR, GOLDEN, SECOND_FACTOR, WORD_BYTES

FILL, WALK, READ = "fill", "walk", "read"
THREADS = 256

# Registers: %w is mixed, %t and %g are free for it; %f and %s have the factors.
_MIX = """
    shr.u64 %t, %w, 30;
    xor.b64 %w, %w, %t;
    mul.lo.u64 %w, %w, %f;
    shr.u64 %t, %w, 27;
    xor.b64 %w, %w, %t;
    mul.lo.u64 %w, %w, %s;
    shr.u64 %t, %w, 31;
    xor.b64 %w, %w, %t;"""
_REGISTERS = """
    .reg .pred %p;
    .reg .u32 %a, %b, %c, %rounds, %steps;
    .reg .u64 %w, %t, %f, %s, %g, %n, %stride, %ptr, %end, %seed, %out, %at, %v, %u, %k;"""
_START = f"""
    mov.u64 %f, {FIRST_FACTOR};
    mov.u64 %s, {SECOND_FACTOR};
    mov.u64 %g, {GOLDEN};
    mov.u32 %a, %ctaid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %c, %tid.x;
    mul.wide.u32 %n, %a, %b;
    cvt.u64.u32 %t, %c;
    add.u64 %n, %n, %t;
    mov.u32 %a, %nctaid.x;
    mul.wide.u32 %stride, %a, %b;"""

MODULE = f""".version 6.0
.target sm_70
.address_size 64

.visible .entry {FILL}(
    .param .u64 ptr, .param .u64 blocks, .param .u64 seed, .param .u32 rounds)
{{{_REGISTERS}{_START}
    ld.param.u64 %ptr, [ptr];
    ld.param.u64 %end, [blocks];
    ld.param.u64 %seed, [seed];
    ld.param.u32 %rounds, [rounds];
NEXT_BLOCK:
    setp.ge.u64 %p, %n, %end;
    @%p bra DONE;
    add.u64 %w, %n, %g;{_MIX}
    xor.b64 %w, %w, %seed;{_MIX}
    mul.lo.u64 %at, %n, {BLOCK_WORDS * WORD_BYTES};
    add.u64 %at, %at, %ptr;
    mov.u32 %a, 0;
NEXT_WORD:
    mov.u32 %b, 0;
NEXT_ROUND:
    add.u64 %w, %w, %g;{_MIX}
    add.u32 %b, %b, 1;
    setp.lt.u32 %p, %b, %rounds;
    @%p bra NEXT_ROUND;
    st.global.u64 [%at], %w;
    add.u64 %at, %at, {WORD_BYTES};
    add.u32 %a, %a, 1;
    setp.lt.u32 %p, %a, {BLOCK_WORDS};
    @%p bra NEXT_WORD;
    add.u64 %n, %n, %stride;
    bra NEXT_BLOCK;
DONE:
    ret;
}}

.visible .entry {WALK}(
    .param .u64 ptr, .param .u64 words, .param .u64 seed, .param .u32 steps,
    .param .u64 leaves, .param .u64 out)
{{{_REGISTERS}{_START}
    ld.param.u64 %ptr, [ptr];
    ld.param.u64 %k, [words];
    ld.param.u64 %seed, [seed];
    ld.param.u32 %steps, [steps];
    ld.param.u64 %end, [leaves];
    ld.param.u64 %out, [out];
    setp.ge.u64 %p, %n, %end;
    @%p bra DONE;
    not.b64 %w, %seed;
    add.u64 %w, %w, %n;{_MIX}
    mov.u32 %a, 0;
NEXT_STEP:
    mul.hi.u64 %at, %w, %k;
    shl.b64 %at, %at, 3;
    add.u64 %at, %at, %ptr;
    ld.global.u64 %v, [%at];
    xor.b64 %w, %w, %v;{_MIX}
    add.u32 %a, %a, 1;
    setp.lt.u32 %p, %a, %steps;
    @%p bra NEXT_STEP;
    shl.b64 %at, %n, 3;
    add.u64 %at, %at, %out;
    st.global.u64 [%at], %w;
DONE:
    ret;
}}

.visible .entry {READ}(.param .u64 ptr, .param .u64 words, .param .u64 out)
{{{_REGISTERS}{_START}
    ld.param.u64 %ptr, [ptr];
    ld.param.u64 %end, [words];
    ld.param.u64 %out, [out];
    shl.b64 %at, %n, 3;
    add.u64 %out, %out, %at;
    shl.b64 %n, %n, 1;
    shl.b64 %stride, %stride, 1;
    mov.u64 %w, 0;
NEXT_PAIR:
    setp.ge.u64 %p, %n, %end;
    @%p bra DONE;
    shl.b64 %at, %n, 3;
    add.u64 %at, %at, %ptr;
    ld.global.v2.u64 {{%v, %u}}, [%at];
    add.u64 %w, %w, %v;
    add.u64 %w, %w, %u;
    add.u64 %n, %n, %stride;
    bra NEXT_PAIR;
DONE:
    st.global.u64 [%out], %w;
    ret;
}}
"""
