//! What programs call and the kernel has no helper for: functions that go with each program.
//!
//! For:     `translate`.
//! State:   none: texts.
//! Context: control. They run in a trap of the target's, in the kernel.
//! Keeps:   L1 each does what `bpf::helper` says of its number.
//!          L2 no length and no place that a program gives leads out of its memory: the kernel's verifier takes nothing else.
//!          L3 what several CPUs add to is changed by one atomic instruction, so that aggregates are exact.
//! Checked: tests of `translate` (the verifier takes each); testkit `backends`.
//!
//! `jset %r0, 0, LABEL` stands for the kernel's `may_goto`: by it a loop that the verifier cannot count has an end.
//! A function is called by its number; `variable N` is its address. Numbers below `bpf::helper::OWN` are the kernel's own helpers.

mod aggregates;
mod texts;

use aggregates::{aggregate, number};
use bpf::helper;
use map::Agg;
use texts::{
    STEP, append, byte, find, head, step_append, step_compare, step_equal, step_find, step_len, walk,
};

/// Map numbers of our own, beside the program's.
pub const SLOTS: i32 = -2;
/// One value: two words for each program, and the records that found no room.
pub const COUNTS: i32 = -3;
/// One value: when tracing began, and the process that was started with it.
pub const WORLD: i32 = -4;

/// Functions of our own that no program names.
pub const PROGRAM: u32 = 0x4e5f_0000;
/// The program around [`PROGRAM`].
pub const ENTRY: u32 = 0x4e5f_0001;
/// In the place of a helper that the kernel has, with bounds on what is given to it.
pub const BOUNDED: u32 = 0x4e5e_0000;
/// [`helper::ABOUT`], by kind.
pub const ABOUT: u32 = 0x4e5c_0000;
const COUNT_STEP: u32 = STEP + 0xff;
/// Functions of one map: `+ kind << 12 + map`.
const OF_MAP: u32 = 0x4e60_0000;

/// The slots of one CPU.
pub const SLOTS_EACH: u32 = 4;
/// In front of a slot's scratch: whether it is taken; room for a stamp before a record.
pub const SLOT_HEAD: usize = 16;

/// A key that was given itself lies in the frame from here on, and r2 points to it.
const WORD: &str = "stxdw [%r10-8], %r2\nmov %r2, %r10\nadd %r2, -8\n";

/// What a function of one map does.
#[derive(Clone, Copy)]
pub enum OfMap {
    /// [`helper::AGGREGATE`].
    Aggregate,
    /// [`helper::AGGREGATED`].
    Aggregated,
    /// The number of an aggregate's words.
    Number,
    /// [`helper::MAP_NEXT`].
    Next,
    /// What that does for each element.
    NextStep,
    /// [`helper::WORD_AGGREGATE`].
    AggregateWord,
}

/// The number of a function of a map.
pub fn of_map(what: OfMap, map: u32) -> u32 {
    OF_MAP + ((what as u32) << 12) + map
}

/// What a table of a script is, for its functions.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub key: usize,
    pub value: usize,
    pub agg: Option<Agg>,
}

/// What the functions go by.
#[derive(Debug)]
pub struct Library<'a> {
    pub tables: &'a [Kept],
    /// No length of a program is greater.
    pub longest: usize,
    /// Where the zeros are in the constants.
    pub zeros: usize,
    /// The program's number, and the first and last of its cookies.
    pub number: usize,
    pub cookies: (u64, u64),
    /// It may wait for memory that is not there yet.
    pub may_wait: bool,
    /// Where lost records are counted.
    pub lost: usize,
}

impl Library<'_> {
    /// The text of a function.
    ///
    /// # Errors
    /// What the kernel cannot do, in words.
    pub fn text(&self, number: u32) -> Result<String, String> {
        if let Some(of) = number.checked_sub(OF_MAP) {
            return self.of_map(of >> 12, of & 0xfff);
        }
        Ok(match number {
            ENTRY => self.entry(),
            helper::LOOKUP_OR_INIT => format!(
                "mov %r6, %r1\nmov %r7, %r2\ncall 1\njne %r0, 0, exit\nmov %r1, %r6\nmov %r2, %r7\n\
                 lddw %r3, map_value 0 {}\nmov %r4, 1\ncall 2\nmov %r1, %r6\nmov %r2, %r7\ncall 1\nexit",
                self.zeros
            ),
            helper::WORD_LOOKUP => format!("{WORD}call 1\nexit"),
            helper::WORD_LOOKUP_OR_INIT => format!("{WORD}call {}\nexit", helper::LOOKUP_OR_INIT),
            helper::WORD_UPDATE => {
                format!("{WORD}stxdw [%r10-16], %r3\nmov %r3, %r10\nadd %r3, -16\nmov %r4, 0\ncall 2\nexit")
            }
            helper::WORD_DELETE => format!("{WORD}call 3\nexit"),
            helper::MAP_LEN => {
                format!("lddw %r2, variable {COUNT_STEP}\nmov %r3, 0\nmov %r4, 0\ncall 164\nexit")
            }
            COUNT_STEP => "mov %r0, 0\nexit".into(),
            helper::RINGBUF_OUTPUT => self.output(),
            helper::ATTACH_COOKIE => self.cookie(),
            helper::CHILD => format!("lddw %r1, map_value {WORLD} 8\nldxdw %r0, [%r1]\nexit"),
            helper::MEM_ZERO => {
                format!("{}lddw %r3, map_value 0 {}\ncall 113\nexit", self.bound(), self.zeros)
            }
            helper::PROBE_READ_TEXT => self.read_text(),
            helper::STR_LEN => "mov %r3, 0\nmov %r4, 0\n".to_owned() + &walk(STEP),
            helper::STR_COMPARE => walk(STEP + 1),
            helper::MEM_COMPARE => "mov %r4, %r3\nmov %r3, %r2\nmov %r2, %r4\n".to_owned() + &walk(STEP + 2),
            helper::STR_TIDY => "mov %r3, 0\nmov %r4, 0\n".to_owned() + &walk(STEP + 3),
            helper::STR_APPEND => append(),
            helper::STR_FIND => find(),
            number if number == STEP => step_len(),
            number if number == STEP + 1 => step_compare(),
            number if number == STEP + 2 => step_equal(),
            number if number == STEP + 3 => self.step_tidy(),
            number if number == STEP + 4 => step_append(),
            number if number == STEP + 5 => step_find(),
            number if number == BOUNDED + helper::PROBE_READ_USER => self.read_user(),
            number if number == BOUNDED + helper::PROBE_READ_OWN => format!("{}call 113\nexit", self.bound()),
            number => about(number).map_or_else(|| Err(name_of(number)), |text| Ok(text.into()))?,
        })
    }

    /// Around a program: memory of its own, and what became of the hit.
    fn entry(&self) -> String {
        let (ran, skipped) = (16 * self.number, 16 * self.number + 8);
        format!(
            "mov %r6, %r1
            call 8
            mov %r7, %r0
            lsh %r7, 2
            mov %r8, 0
            again:
            mov %r1, %r7
            add %r1, %r8
            stxw [%r10-4], %r1
            lddw %r1, map {SLOTS}
            mov %r2, %r10
            add %r2, -4
            call 1
            jeq %r0, 0, none
            mov %r9, %r0
            mov %r1, 1
            lock xchg [%r9], %r1
            jeq %r1, 0, have
            add %r8, 1
            jlt %r8, {SLOTS_EACH}, again
            none:
            lddw %r1, map_value {COUNTS} {skipped}
            mov %r2, 1
            lock add [%r1], %r2
            mov %r0, 0
            exit
            have:
            mov %r1, %r6
            mov %r2, %r9
            add %r2, {SLOT_HEAD}
            call {PROGRAM}
            stdw [%r9], 0
            lddw %r1, map_value {COUNTS} {ran}
            mov %r2, 1
            lock add [%r1], %r2
            mov %r0, 0
            exit"
        )
    }

    /// A record with its stamp before it: what lies there is put back.
    fn output(&self) -> String {
        format!(
            "mov %r6, %r2
            mov %r7, %r3
            call 5
            ldxdw %r9, [%r6-8]
            stxdw [%r6-8], %r0
            lddw %r1, map {}
            mov %r2, %r6
            add %r2, -8
            mov %r3, %r7
            add %r3, 8
            mov %r4, 1
            call 130
            stxdw [%r6-8], %r9
            mov %r8, %r0
            jeq %r8, 0, fine
            lddw %r1, map_value {COUNTS} {}
            mov %r2, 1
            lock add [%r1], %r2
            fine:
            mov %r0, %r8
            exit",
            helper::RING,
            self.lost
        )
    }

    /// The cookie, which the verifier knows the bounds of.
    fn cookie(&self) -> String {
        let (first, last) = self.cookies;
        format!(
            "call 174\nlddw %r1, {first}\njge %r0, %r1, low\nmov %r0, %r1\nlow:\nlddw %r1, {last}\n\
             jle %r0, %r1, high\nmov %r0, %r1\nhigh:\nexit"
        )
    }

    /// r2 is at most what any program gives.
    fn bound(&self) -> String {
        let longest = self.longest;
        format!("jle %r2, {longest}, bounded\nmov %r2, {longest}\nbounded:\n")
    }

    /// Memory that is not there is read a second time, in the way that waits for it.
    fn read_user(&self) -> String {
        let again = match self.may_wait {
            true => "jeq %r0, 0, exit\nmov %r1, %r6\nmov %r2, %r7\nmov %r3, %r8\ncall 148\n",
            false => "",
        };
        format!(
            "{}mov %r6, %r1\nmov %r7, %r2\nmov %r8, %r3\njslt %r3, 0, own\ncall 112\n{again}exit\nown:\ncall 113\nexit",
            self.bound()
        )
    }

    /// A text that is as long as its place has no NUL.
    fn read_text(&self) -> String {
        // Its first byte is waited for; what lies on another page that is not there is not read.
        let again = match self.may_wait {
            true => {
                "jsge %r0, 0, read
                mov %r1, %r6
                mov %r2, 1
                mov %r3, %r8
                call 148
                mov %r1, %r6
                mov %r2, %r7
                mov %r3, %r8
                call 114
                "
            }
            false => "",
        };
        format!(
            "{}mov %r6, %r1
            mov %r7, %r2
            mov %r8, %r3
            mov %r0, 0
            jeq %r7, 0, exit
            jslt %r8, 0, own
            call 114
            {again}ja read
            own:
            call 115
            read:
            jslt %r0, 0, exit
            jeq %r0, %r7, full
            mov %r0, 0
            exit
            full:
            add %r7, -1
            mov %r1, %r6
            add %r1, %r7
            mov %r2, 1
            mov %r3, %r8
            add %r3, %r7
            jslt %r8, 0, last
            call 112
            mov %r0, 0
            exit
            last:
            call 113
            mov %r0, 0
            exit",
            self.bound()
        )
    }

    /// Zeros behind the first NUL; the context's third word says that it was met.
    fn step_tidy(&self) -> String {
        format!(
            "{}ldxdw %r1, [%r7+16]
            jne %r1, 0, clear
            {}ldxdw %r1, [%r10-8]
            mov %r0, 0
            jne %r1, 0, exit
            stdw [%r7+16], 1
            mov %r0, 0
            exit
            clear:
            ldxdw %r1, [%r7]
            add %r1, %r6
            mov %r2, 1
            lddw %r3, map_value 0 {}
            call 113
            mov %r0, 0
            exit
            stop:
            mov %r0, 1
            exit",
            head(),
            byte(0, 8),
            self.zeros
        )
    }

    fn of_map(&self, what: u32, map: u32) -> Result<String, String> {
        let kept = self.tables.get(map as usize).ok_or("a map that is not there")?;
        let number = of_map(OfMap::Number, map);
        Ok(match what {
            what if what == OfMap::Aggregate as u32 => aggregate(kept.agg.ok_or("no aggregate")?)?,
            what if what == OfMap::Aggregated as u32 => {
                format!("call 1\njeq %r0, 0, exit\nmov %r1, %r0\ncall {number}\nexit")
            }
            what if what == OfMap::Number as u32 => self::number(kept.agg.ok_or("no aggregate")?)?,
            what if what == OfMap::AggregateWord as u32 => {
                format!("{WORD}call {}\nexit", of_map(OfMap::Aggregate, map))
            }
            what if what == OfMap::Next as u32 => next(of_map(OfMap::NextStep, map)),
            _ => next_step(kept, number),
        })
    }
}

/// In words what a script asked for that the kernel has not.
fn name_of(number: u32) -> String {
    match number {
        helper::VECTOR => "floating-point values in vector registers".into(),
        helper::NAME_OF => "strerror(), signal_name() and syscall_name()".into(),
        helper::COMM_OF => "comm() of another process".into(),
        helper::USER_STACK => "ustack".into(),
        number if number & !0xf == ABOUT => "ppid, pcomm and leader_comm".into(),
        helper::WRITE_USER => "write_user()".into(),
        helper::SEND_SIGNAL => "signal()".into(),
        other => format!("helper {other:#x}"),
    }
}

/// What [`helper::ABOUT`] does, by kind.
fn about(number: u32) -> Option<&'static str> {
    use helper::About as A;
    let is = |kind: A| number == ABOUT + kind as u32;
    let texts = [
        (A::LeaderTid, "call 14\nrsh %r0, 32\nexit"),
        (A::InitPidTgid, "call 14\nexit"),
        (A::Cgroup, "call 80\nexit"),
        (A::Jiffies, "call 118\nexit"),
        (A::Began, "lddw %r1, map_value -4 0\nldxdw %r0, [%r1]\nexit"),
    ];
    texts.into_iter().find(|(kind, _)| is(*kind)).map(|(_, text)| text)
}

/// (map, cursor, key, value): the element that so many are before. The cursor is read by a helper: the verifier is not to know it,
/// or it would count.
fn next(step: u32) -> String {
    format!(
        "jset %r0, 0, enough
        mov %r6, %r1
        mov %r7, %r2
        stxdw [%r10-24], %r3
        stxdw [%r10-16], %r4
        stdw [%r10-8], 0
        mov %r1, %r10
        add %r1, -32
        mov %r2, 8
        mov %r3, %r7
        call 113
        ldxdw %r5, [%r10-32]
        add %r5, 1
        stxdw [%r7], %r5
        mov %r1, %r6
        lddw %r2, variable {step}
        mov %r3, %r10
        add %r3, -32
        mov %r4, 0
        call 164
        ldxdw %r0, [%r10-8]
        exit
        enough:
        mov %r0, 0
        exit"
    )
}

fn next_step(kept: &Kept, number: u32) -> String {
    let value = match kept.agg {
        Some(_) => format!("mov %r1, %r8\ncall {number}\nldxdw %r1, [%r6+16]\nstxdw [%r1], %r0\n"),
        None => format!("ldxdw %r1, [%r6+16]\nmov %r2, {}\nmov %r3, %r8\ncall 113\n", kept.value),
    };
    format!(
        "ldxdw %r5, [%r4]
        jeq %r5, 0, here
        sub %r5, 1
        stxdw [%r4], %r5
        mov %r0, 0
        exit
        here:
        mov %r6, %r4
        mov %r7, %r2
        mov %r8, %r3
        ldxdw %r1, [%r6+8]
        mov %r2, {}
        mov %r3, %r7
        call 113
        {value}stdw [%r6+24], 1
        mov %r0, 1
        exit",
        kept.key
    )
}
