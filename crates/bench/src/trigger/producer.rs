//! The traced program: threads that call a function as fast as they can.
//!
//! For:     the parent, which writes `go FUNCTION` and `stop` and reads one line of answer to each.
//! State:   the shared mapping.
//! Context: control; the target of the session that the parent makes.
//! Keeps:   P1 a producer's calls are counted after each, before the next, and never dropped.
//!          P2 the answer to `stop` comes when every producer has ended.
//!          P3 the program ends when the parent does.
//! Checked: cli tests/bench.rs.

use super::functions::{self, Function};
use super::shared::{Record, STOP, Shared};
use crate::pin::{Gate, pin_to};
use std::io::BufRead;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// Calls between two looks at the clock.
const BATCH: u32 = 512;
/// The same for calls that cost a system call or more.
const SLOW_BATCH: u32 = 64;
/// Frames below a call that is made from deep down.
const DEPTH: u32 = 16;

/// Runs the traced program: descriptor, producers, ticks, CPUs separated by commas or `-`.
pub fn target_main(args: &[String]) -> i32 {
    let Some((shared, cpus)) = arguments(args) else {
        eprintln!("nanoprobe: bench {}: is started by nanoprobe bench", super::TARGET);
        return 1;
    };
    if let Err((function, found)) = functions::check() {
        println!("error {} begins with {found:02x?}", function.symbol());
        return 1;
    }
    println!("ready");
    let mut producers: Vec<JoinHandle<()>> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("go", symbol) => match Function::of_symbol(symbol) {
                Some(function) => {
                    producers = start(&shared, function, &cpus);
                    println!("going");
                }
                None => println!("error no function {symbol}"),
            },
            ("stop", _) => {
                shared.tick().store(STOP, Relaxed);
                let panicked = producers.drain(..).filter_map(|p| p.join().err()).count();
                println!("{}", if panicked == 0 { "stopped" } else { "error a producer panicked" });
            }
            _ => println!("error what is {line}"),
        }
    }
    exit(0)
}

fn arguments(args: &[String]) -> Option<(Arc<Shared>, Vec<usize>)> {
    let [fd, producers, ticks, cpus] = args else { return None };
    let shared = Shared::map(fd.parse().ok()?, producers.parse().ok()?, ticks.parse().ok()?).ok()?;
    let cpus = match cpus.as_str() {
        "-" => Vec::new(),
        list => list.split(',').map(|cpu| cpu.parse().ok()).collect::<Option<Vec<usize>>>()?,
    };
    Some((Arc::new(shared), cpus))
}

/// Starts the producers; all are at their loop when this returns. The shared memory must be clear.
fn start(shared: &Arc<Shared>, function: Function, cpus: &[usize]) -> Vec<JoinHandle<()>> {
    let gate = Arc::new(Gate::new(shared.producers() + 1));
    let spawn = |producer: usize| {
        let (shared, gate) = (Arc::clone(shared), Arc::clone(&gate));
        let cpu = (!cpus.is_empty()).then(|| cpus[producer % cpus.len()]);
        std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                pin_to(cpu);
            }
            gate.pass();
            produce(&shared, producer, function);
        })
    };
    let producers = (0..shared.producers()).map(spawn).collect();
    gate.pass();
    producers
}

fn produce(shared: &Shared, producer: usize, function: Function) {
    match function {
        Function::Nop => spin::<BATCH>(shared, producer, || functions::trig_nop()),
        Function::Push => spin::<BATCH>(shared, producer, || functions::trig_push()),
        Function::Ret => spin::<BATCH>(shared, producer, || functions::trig_ret()),
        Function::Nop5 => spin::<BATCH>(shared, producer, || functions::trig_nop5()),
        Function::Usdt => spin::<BATCH>(shared, producer, || functions::trig_usdt()),
        Function::Args => with_arguments(shared, producer),
        Function::Deep => deeper(DEPTH, &|| spin::<BATCH>(shared, producer, || functions::trig_deep())),
        Function::Framed => framed(&|| spin::<BATCH>(shared, producer, || functions::trig_framed())),
        Function::Anew => deeper(DEPTH, &|| {
            let number = std::cell::Cell::new(0);
            spin::<BATCH>(shared, producer, || {
                number.set(number.get() + 1);
                functions::anew(number.get(), functions::trig_anew);
            });
        }),
        Function::FramedAnew => framed(&|| {
            let number = std::cell::Cell::new(0);
            spin::<BATCH>(shared, producer, || {
                number.set(number.get() + 1);
                functions::anew(number.get(), functions::trig_framed_anew);
            });
        }),
        Function::Syscall => spin::<SLOW_BATCH>(shared, producer, getppid),
    }
}

/// Calls it so many calls deeper.
#[inline(never)]
fn deeper(left: u32, call: &dyn Fn()) {
    match left {
        0 => call(),
        _ => deeper(std::hint::black_box(left) - 1, call),
    }
    // So that this is no tail call.
    std::hint::black_box(left);
}

/// The same by functions with frame pointers.
fn framed(call: &dyn Fn()) {
    extern "C" fn go_on(call: *const ()) {
        // SAFETY: the address of what the caller has on its stack, while it waits.
        let call = unsafe { &*call.cast::<&dyn Fn()>() };
        call();
    }
    // SAFETY: the chain calls the function with what it needs, once, and returns.
    unsafe { functions::trig_chain(DEPTH, go_on, (&raw const call).cast()) };
}

/// Numbers from 0 to 999, and two texts.
#[inline(never)]
fn with_arguments(shared: &Shared, producer: usize) {
    let on_stack = *b"thirty-one bytes on the stack.!\0";
    let on_heap = on_stack.to_vec();
    let (on_stack, on_heap) =
        (std::hint::black_box(&on_stack).as_ptr(), std::hint::black_box(&on_heap).as_ptr());
    let number = std::cell::Cell::new(0);
    spin::<BATCH>(shared, producer, || {
        let now = number.get();
        number.set(if now == 999 { 0 } else { now + 1 });
        functions::trig_args(now, on_stack, on_heap);
    });
}

/// Calls until the parent says stop. One store per call counts it; the clock is looked at between batches.
#[inline(never)]
fn spin<const BATCH: u32>(shared: &Shared, producer: usize, call: impl Fn()) {
    let (tick, calls) = (shared.tick(), shared.calls(producer));
    let mut made = 0u64;
    let mut seen = tick.load(Relaxed);
    shared.record(producer, seen, Record { calls: 0, cpu_ns: sys::thread_cpu_ns() });
    loop {
        for _ in 0..BATCH {
            call();
            made += 1;
            calls.store(made, Relaxed);
        }
        let now = tick.load(Relaxed);
        if now != seen {
            shared.record(producer, now, Record { calls: made, cpu_ns: sys::thread_cpu_ns() });
            seen = now;
        }
        if now == STOP {
            return;
        }
    }
}

fn getppid() {
    // SAFETY: getppid takes no argument and touches no memory.
    unsafe { sys::syscall(sys::nr::GETPPID, [0; 6]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_count_every_call_and_end_when_told() {
        let fd = sys::memfd_inheritable(c"test", Shared::len_bytes(2, 4)).unwrap();
        let shared = Arc::new(Shared::map(fd, 2, 4).unwrap());
        let producers = start(&shared, Function::Ret, &[]);
        for tick in 0..2 {
            shared.tick().store(tick, Relaxed);
            while (0..2).any(|p| shared.recorded(p, tick).is_none()) {
                std::thread::yield_now();
            }
        }
        shared.tick().store(STOP, Relaxed);
        producers.into_iter().for_each(|p| p.join().unwrap());
        let record = shared.recorded(0, 1).unwrap();
        let calls = shared.calls(0).load(Relaxed);
        assert!(calls >= record.calls && record.calls > 0);
        assert_eq!(calls % u64::from(BATCH), 0);
    }
}
