//! What programs ask of aggregates: adding a value, and the number that one stands for.
//!
//! For:     `library`.
//! State:   none: texts of programs.
//! Context: control.
//! Keeps:   L3 of `library`: what several CPUs add to is changed by one atomic instruction.
//! Checked: as `library`; `values_fall_into_the_buckets_that_the_map_has`.

use bpf::helper;
use map::Agg;
use std::fmt::Write as _;

/// How often an extreme is tried to be raised.
const TRIES: u32 = 64;

/// (map, key, value, time) into the words of a key.
pub(super) fn aggregate(agg: Agg) -> Result<String, String> {
    let mut text = format!(
        "mov %r6, %r3
        call {}
        jne %r0, 0, have
        mov %r0, -7
        exit
        have:
        mov %r8, %r0
        mov %r2, 1
        ",
        helper::LOOKUP_OR_INIT
    );
    let added = "lock add [%r8], %r2\nmov %r0, 0\nexit";
    match agg {
        Agg::Count => text += added,
        Agg::Sum { .. } => text += "lock add [%r8], %r6\nmov %r0, 0\nexit",
        Agg::Avg { .. } | Agg::Stats { .. } => {
            text += "lock add [%r8], %r2\nlock add [%r8+8], %r6\nmov %r0, 0\nexit";
        }
        Agg::Min { signed } | Agg::Max { signed } => {
            text += &rank(signed, "%r6");
            if matches!(agg, Agg::Min { .. }) {
                text += "xor %r6, -1\n";
            }
            text += &raise();
        }
        Agg::Hist { bits } => text += &format!("{}{}", hist(bits.min(5)), word(agg.words())),
        Agg::Lhist { min, max, step } => {
            text += &lhist(min, max, step, agg.words());
            text += &word(agg.words());
        }
        Agg::Tseries { .. } => return Err("tseries()".into()),
    }
    Ok(text)
}

/// A number so that greater ones without a sign are greater ones with it.
fn rank(signed: bool, register: &str) -> String {
    if signed { format!("lddw %r3, 0x8000000000000000\nxor {register}, %r3\n") } else { String::new() }
}

/// The first word becomes r6 if that is greater; the second says that there is one.
fn raise() -> String {
    format!(
        "mov %r7, 0
        again:
        ldxdw %r0, [%r8]
        jge %r0, %r6, raised
        mov %r1, %r0
        mov %r2, %r6
        lock cmpxchg [%r8], %r2
        jeq %r0, %r1, raised
        add %r7, 1
        jlt %r7, {TRIES}, again
        mov %r0, -16
        exit
        raised:
        stdw [%r8+8], 1
        mov %r0, 0
        exit"
    )
}

/// Adds one to word r1.
fn word(words: usize) -> String {
    let last = words - 1;
    format!(
        "jle %r1, {last}, there
        mov %r1, {last}
        there:
        lsh %r1, 3
        add %r8, %r1
        mov %r2, 1
        lock add [%r8], %r2
        mov %r0, 0
        exit"
    )
}

/// r1 = the bucket of r6: `map::hist_bucket`.
fn hist(bits: u8) -> String {
    let per_power = 1u32 << bits;
    let mut text = format!(
        "mov %r1, 0
        jslt %r6, 0, bucket
        mov %r1, %r6
        add %r1, 1
        jlt %r6, {}, bucket
        mov %r2, %r6
        mov %r3, 0
        mov %r4, 1
        lsh %r4, 32
        jlt %r2, %r4, below32
        rsh %r2, 32
        add %r3, 32
        below32:
        ",
        2 * per_power
    );
    for power in [16, 8, 4, 2, 1] {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "jlt %r2, {}, below{power}\nrsh %r2, {power}\nadd %r3, {power}\nbelow{power}:\n",
            1u32 << power
        );
    }
    let _ = write!(
        text,
        "sub %r3, {bits}
        mov %r1, %r6
        rsh %r1, %r3
        sub %r1, {per_power}
        add %r3, 1
        lsh %r3, {bits}
        add %r1, %r3
        add %r1, 1
        bucket:
        "
    );
    text
}

/// r1 = the bucket of r6: `map`'s of linear histograms.
fn lhist(min: i64, max: i64, step: i64, words: usize) -> String {
    let last = words - 1;
    let step = step.max(1);
    format!(
        "mov %r1, 0
        lddw %r2, {min}
        jslt %r6, %r2, bucket
        lddw %r3, {max}
        mov %r1, {last}
        jsge %r6, %r3, bucket
        mov %r1, %r6
        sub %r1, %r2
        lddw %r4, {step}
        div %r1, %r4
        add %r1, 1
        bucket:
        "
    )
}

/// r0 = the number of the words at r1.
pub(super) fn number(agg: Agg) -> Result<String, String> {
    Ok(match agg {
        Agg::Count | Agg::Sum { .. } => "ldxdw %r0, [%r1]\nexit".into(),
        Agg::Avg { signed } | Agg::Stats { signed } => format!(
            "ldxdw %r2, [%r1]\nldxdw %r3, [%r1+8]\nmov %r0, 0\njeq %r2, 0, exit\nmov %r0, %r3\n{} %r0, %r2\nexit",
            if signed { "sdiv" } else { "div" }
        ),
        Agg::Min { signed } | Agg::Max { signed } => format!(
            "ldxdw %r2, [%r1+8]\nmov %r0, 0\njeq %r2, 0, exit\nldxdw %r0, [%r1]\n{}{}exit",
            if matches!(agg, Agg::Min { .. }) { "xor %r0, -1\n" } else { "" },
            rank(signed, "%r0")
        ),
        Agg::Hist { .. } | Agg::Lhist { .. } => format!(
            "mov %r0, 0\nmov %r2, 0\nagain:\nldxdw %r3, [%r1]\nadd %r0, %r3\nadd %r1, 8\nadd %r2, 1\n\
             jlt %r2, {}, again\nexit",
            agg.words()
        ),
        Agg::Tseries { .. } => return Err("tseries()".into()),
    })
}
