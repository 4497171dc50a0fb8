//! When the arithmetic flags need no saving: only where they are proven dead.

use insn::{Asked, Code, Exits, Flow, place};

const BASE: u64 = 0x1000;

/// Whether the flags are dead before the instruction at `offset` of `bytes`, a function of `len` bytes.
fn are_dead(bytes: &[u8], len: u64, offset: u64) -> bool {
    let codes = [Code { base: BASE, bytes }];
    let flow = Flow::analyse(&codes, &[BASE], &[], &|_| vec![]);
    let function = Some(BASE..BASE + len);
    let asked =
        Asked { site: BASE + offset, function, next_function: None, taken: &|_| false, room: &|_| true };
    place(&flow, &codes, &asked).unwrap().hooks[0].flags_dead
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    [bytes, &[0xcc; 16]].concat()
}

/// `cmp rdi, rsi; mov rax, rdi; ret`: the caller reads the carry flag.
#[test]
fn what_a_function_may_return_in_them_is_live() {
    let status = padded(&[0x48, 0x39, 0xf7, 0x48, 0x89, 0xf8, 0xc3]);
    assert!(are_dead(&status, 7, 0), "cmp writes them all");
    assert!(!are_dead(&status, 7, 3) && !are_dead(&status, 7, 6));
    let codes = [Code { base: BASE, bytes: &status }];
    let flow = Flow::analyse(&codes, &[BASE], &[], &|_| vec![]);
    let exits = Exits::of(&flow, &codes, BASE..BASE + 7, &|_| false).unwrap();
    let placed = exits.place(&flow, &codes, BASE + 6, &|_| false, &|_| true).unwrap();
    assert!(!placed.hooks[0].flags_dead);
}

/// Go's `asyncPreempt`: a signal handler made a thread call it anywhere, and it gives the flags back. Seen as a mutex
/// that its owner took for another's, and a deadlock; found by random probes on gofmt.
#[test]
fn they_are_live_at_a_return_behind_popf() {
    let bytes = padded(&[0x9d, 0x5d, 0xc3]);
    assert!(are_dead(&bytes, 3, 0), "popf writes them");
    assert!(!are_dead(&bytes, 3, 1) && !are_dead(&bytes, 3, 2));
}

#[test]
fn a_call_is_followed_to_what_is_called() {
    // 0: push rbx; 1: call +0xa (0x10); 6: pop rbx; 7: ret; 10: the callee
    let call = |callee: &[u8]| {
        let mut bytes = vec![0x53, 0xe8, 0x0a, 0, 0, 0, 0x5b, 0xc3];
        bytes.resize(0x10, 0xcc);
        padded(&[&bytes[..], callee].concat())
    };
    assert!(are_dead(&call(&[0x31, 0xc0, 0xc3]), 8, 0), "the callee begins with xor eax, eax");
    assert!(!are_dead(&call(&[0x48, 0x83, 0xd0, 0x00, 0xc3]), 8, 0), "the callee begins with adc");
    assert!(!are_dead(&call(&[0xc3]), 8, 0), "the callee returns at once");
    assert!(!are_dead(&call(&[0xff, 0x25, 0, 0, 0, 0]), 8, 0), "nobody knows where the stub leads");
    // push rbx; call rax; pop rbx; ret
    assert!(!are_dead(&padded(&[0x53, 0xff, 0xd0, 0x5b, 0xc3]), 5, 0));
}

#[test]
fn registers_are_not_taken_for_dead_by_what_a_callee_does() {
    // 0: call 8; 5: ret; 8: xor eax, eax; mov ecx, eax; ret
    let bytes = padded(&[0xe8, 3, 0, 0, 0, 0xc3, 0xcc, 0xcc, 0x31, 0xc0, 0x89, 0xc1, 0xc3]);
    let codes = [Code { base: BASE, bytes: &bytes }];
    let flow = Flow::analyse(&codes, &[BASE, BASE + 8], &[], &|_| vec![]);
    let function = Some(BASE..BASE + 6);
    let asked = Asked { site: BASE, function, next_function: None, taken: &|_| false, room: &|_| true };
    let hook = place(&flow, &codes, &asked).unwrap().hooks[0];
    assert!(hook.flags_dead && hook.dead_regs.count() == 0, "{hook:?}");
}
