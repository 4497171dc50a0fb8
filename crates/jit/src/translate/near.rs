//! Keys that are where the thread found them before or first in their chain, and the thread's number: looked for by the program
//! itself.
//!
//! For:     [`Body`](super::Body): what nearly every hit asks, in a quarter of the instructions that a call takes.
//! State:   none of its own.
//! Context: control; what is emitted runs in a hit.
//! Keeps:   N1 what is done here is what the helper would have done; where it is not certain, nothing was done and the helper is called.
//!          N2 where a key is looked for is a guess: no index, version or key is believed that was not looked at.
//!          N3 only a program of our own looks by itself: what it is told of the table is believed.
//! Checked: tests/near.rs (N1, N2: each thing that can be there, and a writer beside it), `torture lang`, `torture live`.

use super::{Body, HELPERS, PARAMS, trusted};
use crate::run::place;
use bpf::helper;
use cranelift_codegen::cursor::Cursor;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, MemFlagsData, Opcode, Type, Value};
use wire::Helper;
use wire::maps::{NOT_THERE, NearAdd, NearTable, NearValue, chain, element};

/// What is asked of a key and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The value's address, 0 without a key.
    Lookup,
    /// The value's address, of a key that is made if it is not there.
    LookupOrInit,
    /// To set a value of so many bytes.
    Set(u32),
    /// To be gone.
    Remove,
}

/// An element that has the key: its index, from 1 on, its address as if a first one of index 0 were the arena's beginning, and its
/// version.
#[derive(Clone, Copy)]
struct Met {
    index: Value,
    element: Value,
    version: Value,
}

impl Asked {
    /// What a helper is asked that can be done here, of values that are a word's if they have so many bytes.
    fn of(number: u32, table: &NearTable, word: Option<u32>) -> Option<Asked> {
        match number {
            helper::WORD_LOOKUP => Some(Asked::Lookup),
            helper::WORD_LOOKUP_OR_INIT => Some(Asked::LookupOrInit),
            helper::WORD_UPDATE => word.map(Asked::Set),
            helper::WORD_DELETE if table.stay > 0 => Some(Asked::Remove),
            _ => None,
        }
    }
}

impl Body<'_> {
    /// What a helper does, as far as it is done here; r0, or `None` and nothing was emitted.
    pub(super) fn ask_near(&mut self, number: u32) -> Option<Value> {
        match number {
            _ if self.unit.is_checked() => None,
            helper::PID_TGID => Some(self.ask_thread()),
            helper::FUNC_IP => Some(self.ask_function()),
            _ => self.ask_for_key(number),
        }
    }

    /// The function that the site is in, in a run that has a site; else by the helper. r0.
    fn ask_function(&mut self) -> Value {
        let [slow, done] = [0, 1].map(|_| self.to.func.dfg.make_block());
        let r0 = self.to.func.dfg.append_block_param(done, I64);
        let site = self.to.ins().load(I64, trusted(), self.run, place::SITE);
        self.go_on_with(site, slow);
        let function = self.to.ins().load(I64, trusted(), site, place::FUNCTION);
        self.jump_with(done, &[function]);
        self.answer_by_helper(helper::FUNC_IP, slow, done);
        r0
    }

    /// Process and thread, where both are known without a call, as the thread's place has its pointer; else by the helper. r0.
    fn ask_thread(&mut self) -> Value {
        let [slow, done] = [0, 1].map(|_| self.to.func.dfg.make_block());
        let r0 = self.to.func.dfg.append_block_param(done, I64);
        let inside = self.inside(slow);
        let copy = self.to.ins().load(I64, trusted(), self.run, place::COPY);
        let is_none = self.to.ins().icmp_imm_u(IntCC::UnsignedLessThanOrEqual, copy, wire::COPY_NONE as i64);
        self.leave_to(slow, is_none);
        let site = self.to.ins().load(I64, trusted(), self.run, place::SITE);
        let process = self.to.ins().uload32(trusted(), site, place::PROCESS);
        self.go_on_with(process, slow);
        let thread_at = self.to.ins().load(I64, trusted(), site, place::THREAD_AT);
        self.go_on_with(thread_at, slow);
        let pointer = self.to.ins().load(I64, trusted(), inside, place::POINTER);
        let thread_at = self.to.ins().iadd(pointer, thread_at);
        let thread = self.to.ins().uload32(trusted(), thread_at, 0);
        self.go_on_with(thread, slow);
        let upper = self.to.ins().ishl_imm_u(process, 32);
        let both = self.to.ins().bor(upper, thread);
        self.jump_with(done, &[both]);
        self.answer_by_helper(helper::PID_TGID, slow, done);
        self.of_thread.insert(r0);
        r0
    }

    /// What a helper does that is asked for a key: as [`Body::ask_near`].
    fn ask_for_key(&mut self, number: u32) -> Option<Value> {
        let (table, _) = *self.tables.get(&self.regs[1])?;
        let is_given = match helper::by_word(number) {
            // Its value lies elsewhere too.
            Some(helper::WORD_UPDATE) => return None,
            by_word => by_word.is_none(),
        };
        let by_word = helper::by_word(number).unwrap_or(number);
        let asked = match table.value {
            NearValue::Aggregate { .. } if by_word == helper::WORD_AGGREGATE => None,
            NearValue::Aggregate { .. } => return None,
            NearValue::Plain { word, .. } => Some(Asked::of(by_word, &table, word)?),
        };
        if is_given && table.key_len > 8 {
            return None;
        }
        let [slow, done] = [0, 1].map(|_| self.to.func.dfg.make_block());
        let r0 = self.to.func.dfg.append_block_param(done, I64);
        let key =
            if is_given { vec![self.cut(self.regs[2], table.key_len == 4)] } else { self.key_there(&table) };
        let index = match is_given && self.is_steady(self.regs[2]) {
            true => self.found_before(&table, slow),
            false => self.first_in_chain(&table, &key),
        };
        // One that sleeps takes no value.
        let refused = if asked.is_none() { element::CHANGES | element::ASLEEP } else { element::CHANGES };
        let met = self.meet(&table, (&key, index), refused, slow);
        match asked {
            Some(asked) => self.ask_for_value(asked, &table, met, (done, slow)),
            None => self.ask_to_add(&table, met, (done, slow)),
        }
        self.answer_by_helper(number, slow, done);
        Some(r0)
    }

    /// Takes the value in r3 into the words of a key.
    fn ask_to_add(&mut self, table: &NearTable, met: Met, (done, slow): (Block, Block)) {
        let NearValue::Aggregate { at, unit, stride, cpus, how } = table.value else {
            return self.jump_with(slow, &[]);
        };
        let words = self.part(met.index, unit);
        let first = self.behind(words, at - unit);
        let value = if how == NearAdd::Count { self.constant(1) } else { self.regs[3] };
        let how = self.constant(how.to_word().cast_signed());
        let [stride, cpus] = [stride, cpus.into()].map(|word| self.constant(word.cast_signed()));
        let undone = self.call(HELPERS, Helper::NearAdd.number(), [first, value, how, stride, cpus]);
        self.branch_with(undone, (slow, &[]), (done, &[undone]));
    }

    /// A key that is nearly always the one that its thread had before: a number that stands there, or what the thread is.
    fn is_steady(&self, key: Value) -> bool {
        let dfg = &self.to.func.dfg;
        let mut value = key;
        for _ in 0..4 {
            let Some(inst) = dfg.value_def(value).inst() else { return self.of_thread.contains(&value) };
            match dfg.insts[inst].opcode() {
                Opcode::Iconst => return true,
                Opcode::Uextend | Opcode::Ireduce | Opcode::Ushr | Opcode::Band => {
                    value = dfg.inst_args(inst)[0]
                }
                _ => return false,
            }
        }
        false
    }

    /// The words of the key that r2 leads to.
    fn key_there(&mut self, table: &NearTable) -> Vec<Value> {
        let (at, there) = (self.regs[2], MemFlagsData::new().with_notrap());
        match table.key_len {
            4 => vec![self.to.ins().uload32(there, at, 0)],
            len => (0..len / 8).map(|n| self.to.ins().load(I64, there, at, 8 * n.cast_signed())).collect(),
        }
    }

    /// The index of the element where the thread found a key before. Any number.
    fn found_before(&mut self, table: &NearTable, slow: Block) -> Value {
        let inside = self.inside(slow);
        self.to.ins().uload32(trusted(), inside, table.near.cast_signed())
    }

    /// The index of the element where the key's chain begins. Any number.
    fn first_in_chain(&mut self, table: &NearTable, key: &[Value]) -> Value {
        let spread = self.constant(chain::SPREAD.cast_signed());
        let mut mixed = self.constant(0);
        for (n, word) in key.iter().enumerate() {
            let begin = if n == 0 { u64::from(table.key_len) } else { 0 };
            let salt = self.constant((chain::SALT ^ begin).cast_signed());
            let salted = self.to.ins().bxor(*word, salt);
            let salted = self.to.ins().bxor(mixed, salted);
            let [low, high] = [self.to.ins().imul(salted, spread), self.to.ins().umulhi(salted, spread)];
            mixed = self.to.ins().bxor(low, high);
        }
        let upper = self.to.ins().ushr_imm_u(mixed, 32);
        let hash = self.to.ins().bxor(mixed, upper);
        let number = self.to.ins().band_imm_u(hash, i64::from(table.buckets - 1));
        let bucket = self.part(number, chain::UNIT as u32);
        let head = self.behind(bucket, table.chains + chain::HEAD as u32);
        // [JIT-2] As [MAP-50]: the element is as whoever put it there left it. Pairs with [MAP-23].
        let index = self.to.ins().atomic_load(I32, trusted(), head);
        self.to.ins().uextend(I64, index)
    }

    fn answer_by_helper(&mut self, number: u32, slow: Block, done: Block) {
        self.to.insert_block(slow);
        self.to.func.layout.set_cold(slow);
        let args = self.args_taken(number);
        let told = self.call(HELPERS, number, args);
        self.jump_with(done, &[told]);
        self.to.insert_block(done);
    }

    /// What is given to a helper that is called if nothing else will do: nothing is held in a register for it that can be made anew, or that
    /// it does not take.
    fn args_taken(&mut self, number: u32) -> [Value; PARAMS - 1] {
        let mut args = [self.run; PARAMS - 1];
        let taken = match helper::by_word(number).unwrap_or(number) {
            helper::PID_TGID | helper::FUNC_IP => 0,
            helper::WORD_LOOKUP | helper::WORD_LOOKUP_OR_INIT | helper::WORD_DELETE => 2,
            helper::WORD_UPDATE => 3,
            helper::WORD_AGGREGATE => 4,
            _ => args.len(),
        };
        args[..taken].copy_from_slice(&self.args_of_call()[..taken]);
        if let Some(&(_, handle)) = self.tables.get(&args[0])
            && let Ok(again) = self.wide(handle)
        {
            args[0] = again;
        }
        args
    }

    /// The thread's place; `slow` without one, in a run that is no hit too.
    fn inside(&mut self, slow: Block) -> Value {
        let inside = self.to.ins().load(I64, trusted(), self.run, place::INSIDE);
        self.go_on_with(inside, slow);
        inside
    }

    fn ask_for_value(&mut self, asked: Asked, table: &NearTable, met: Met, (done, slow): (Block, Block)) {
        let NearValue::Plain { at, .. } = table.value else { return self.jump_with(slow, &[]) };
        let (asleep, there) = (self.is_asleep(met), self.to.func.dfg.make_block());
        match asked {
            Asked::Lookup | Asked::LookupOrInit => {
                let none = self.constant(0);
                let gone: (Block, &[Value]) =
                    if asked == Asked::Lookup { (done, &[none]) } else { (slow, &[]) };
                self.branch_with(asleep, gone, (there, &[]));
                self.to.insert_block(there);
                let value = self.of(met.element, table, at);
                self.jump_with(done, &[value]);
            }
            Asked::Set(bytes) => {
                let word = self.cut(self.regs[3], bytes == 4);
                let waking = if table.stay > 0 { self.to.func.dfg.make_block() } else { slow };
                self.branch_with(asleep, (waking, &[]), (there, &[]));
                self.to.insert_block(there);
                let to = self.of(met.element, table, at);
                self.to.ins().store(trusted(), word, to, 0);
                let zero = self.constant(0);
                self.jump_with(done, &[zero]);
                if waking != slow {
                    self.to.insert_block(waking);
                    self.go_on_with_stayers(met, table, slow);
                    // The value is there before the key is.
                    let to = self.of(met.element, table, at);
                    self.to.ins().store(trusted(), word, to, 0);
                    self.set_asleep(met, table, false, (done, slow));
                }
            }
            Asked::Remove => {
                let not_there = self.constant(NOT_THERE);
                self.branch_with(asleep, (done, &[not_there]), (there, &[]));
                self.to.insert_block(there);
                self.go_on_with_stayers(met, table, slow);
                self.set_asleep(met, table, true, (done, slow));
            }
        }
    }

    /// A word, or its lower half.
    fn cut(&mut self, word: Value, is_half: bool) -> Value {
        if !is_half {
            return word;
        }
        let half = self.to.ins().ireduce(I32, word);
        self.to.ins().uextend(I64, half)
    }

    /// The element of this index, if it is this key's, and none of these bits is in its version; else `slow`.
    fn meet(&mut self, table: &NearTable, (key, index): (&[Value], Value), refused: u32, slow: Block) -> Met {
        let number = self.to.ins().iadd_imm_s(index, -1);
        let is_beyond =
            self.to.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, number, i64::from(table.limit));
        self.leave_to(slow, is_beyond);
        let element = self.part(index, table.unit);
        // [JIT-1] As [MAP-3]: the version before and after, the same and even, so that the key between is of this element. Each load
        // comes before the next. Pairs with [MAP-1], [MAP-2], [MAP-54], [MAP-57].
        let version = self.seen(I32, element, table, element::VERSION);
        let is_refused = self.to.ins().band_imm_u(version, i64::from(refused));
        self.leave_to(slow, is_refused);
        for (n, word) in key.iter().enumerate() {
            let found = self.seen(I64, element, table, element::DATA + 8 * n);
            let is_another = self.to.ins().icmp(IntCC::NotEqual, found, *word);
            self.leave_to(slow, is_another);
        }
        let used = self.seen(I32, element, table, element::USED);
        let is_live = self.to.ins().band_imm_u(used, i64::from(element::IS_LIVE));
        self.go_on_with(is_live, slow);
        let again = self.seen(I32, element, table, element::VERSION);
        let is_changed = self.to.ins().icmp(IntCC::NotEqual, again, version);
        self.leave_to(slow, is_changed);
        Met { index, element, version }
    }

    /// One that stays with its key goes on here; others are left to who takes the locks.
    fn go_on_with_stayers(&mut self, met: Met, table: &NearTable, slow: Block) {
        if table.stay < table.limit {
            let stay = i64::from(table.stay);
            let goes = self.to.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, met.index, stay);
            self.leave_to(slow, goes);
        }
    }

    fn set_asleep(&mut self, met: Met, table: &NearTable, is_asleep: bool, (done, slow): (Block, Block)) {
        let version = self.of(met.element, table, element::VERSION as u32);
        let seen = self.to.ins().uextend(I64, met.version);
        let [is_asleep, zero] = [is_asleep.into(), 0].map(|word| self.constant(word));
        let undone = self.call(HELPERS, Helper::NearSet.number(), [version, seen, is_asleep, zero, zero]);
        self.branch_with(undone, (slow, &[]), (done, &[undone]));
    }

    fn is_asleep(&mut self, met: Met) -> Value {
        self.to.ins().band_imm_u(met.version, i64::from(element::ASLEEP))
    }

    /// The table's word so far in an element, with all that is loaded later behind it.
    fn seen(&mut self, of: Type, element: Value, table: &NearTable, within: usize) -> Value {
        let at = self.of(element, table, within as u32);
        self.to.ins().atomic_load(of, trusted(), at)
    }

    /// A place within an element.
    fn of(&mut self, element: Value, table: &NearTable, within: u32) -> Value {
        self.behind(element, table.elements + within - table.unit)
    }

    /// The address of one of equal parts of the arena, of which the first is its beginning.
    fn part(&mut self, number: Value, unit: u32) -> Value {
        let bytes = self.to.ins().imul_imm_u(number, i64::from(unit));
        let base = self.to.ins().get_pinned_reg(I64);
        self.to.ins().iadd(base, bytes)
    }

    fn behind(&mut self, element: Value, at: u32) -> Value {
        self.to.ins().iadd_imm_u(element, i64::from(at))
    }

    fn leave_to(&mut self, slow: Block, is_so: Value) {
        let on = self.to.func.dfg.make_block();
        self.branch_with(is_so, (slow, &[]), (on, &[]));
        self.to.insert_block(on);
    }

    fn go_on_with(&mut self, value: Value, slow: Block) {
        let is_none = self.to.ins().icmp_imm_u(IntCC::Equal, value, 0);
        self.leave_to(slow, is_none);
    }

    fn branch_with(&mut self, is_so: Value, yes: (Block, &[Value]), no: (Block, &[Value])) {
        let [with, without] =
            [yes.1, no.1].map(|args| args.iter().copied().map(BlockArg::Value).collect::<Vec<_>>());
        self.to.ins().brif(is_so, yes.0, &with, no.0, &without);
    }

    fn jump_with(&mut self, to: Block, args: &[Value]) {
        let args: Vec<_> = args.iter().copied().map(BlockArg::Value).collect();
        self.to.ins().jump(to, &args);
    }
}
