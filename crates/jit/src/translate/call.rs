//! Calls.
//!
//! For:     [`Body`](super::Body).
//! State:   none of its own.
//! Context: control.
//! Keeps:   C1 nothing is called by an address: a helper whose number is in a register is found by comparing.
//!          C2 after a call r1 to r5 are 0, as in the interpreter.
//!          C3 no more functions are inside each other than the interpreter allows.
//! Checked: the gate (C1); tests/engines.rs; tests/hostile.rs (C3).

use super::{Body, HELPERS, OWN, PARAMS, signature, trusted};
use crate::Refusal;
use crate::run::{FaultKind, place};
use bpf::Callee;
use cranelift_codegen::cursor::Cursor;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{
    BlockArg, ExtFuncData, ExternalName, FuncRef, InstBuilder, UserExternalName, Value,
};

impl Body<'_> {
    pub(super) fn call_local(&mut self, distance: i32) {
        let Some(entry) = self.unit.program.target(self.at, distance) else { return };
        self.charge(self.unit.costs.get(&entry).copied().unwrap_or(1));
        let left = self.unit.counts_calls.then(|| self.enter());
        self.leave_fuel();
        let r0 = self.call(OWN, entry as u32, self.args_of_call());
        if let Some(left) = left {
            self.to.ins().store(trusted(), left, self.run, place::CALLS_LEFT);
        }
        self.leave_if_faulted();
        self.fuel = self.fuel.map(|_| self.to.ins().load(I64, trusted(), self.run, place::FUEL));
        self.returned(r0);
    }

    /// Counts a call that is about to be made; how many were left before.
    fn enter(&mut self) -> Value {
        let left = self.to.ins().load(I64, trusted(), self.run, place::CALLS_LEFT);
        let is_full = self.to.ins().icmp_imm_u(IntCC::Equal, left, 0);
        self.fault_if(is_full, FaultKind::TooDeep, left);
        let fewer = self.to.ins().iadd_imm_s(left, -1);
        self.to.ins().store(trusted(), fewer, self.run, place::CALLS_LEFT);
        left
    }

    pub(super) fn call_helper(&mut self, callee: Callee) -> Result<(), Refusal> {
        let helpers = self.unit.options.helpers;
        let r0 = match callee {
            Callee::Helper(number) if helpers.contains(&number) => match self.ask_near(number) {
                Some(r0) => r0,
                None => self.call(HELPERS, number, self.args_of_call()),
            },
            Callee::Helper(number) => return Err(Refusal::NoHelper { number: i64::from(number) }),
            Callee::Btf(number) => return Err(Refusal::NoHelper { number: i64::from(number) }),
            Callee::Indirect(reg) => {
                let number = self.reg(reg);
                self.call_one_of(helpers, number)
            }
            Callee::Local(distance) => {
                self.call_local(distance);
                return Ok(());
            }
        };
        if self.unit.is_checked() {
            self.leave_if_faulted();
        }
        self.returned(r0);
        Ok(())
    }

    /// Calls the helper that has this number; the run ends if none has.
    fn call_one_of(&mut self, helpers: &[u32], number: Value) -> Value {
        let done = self.to.func.dfg.make_block();
        let r0 = self.to.func.dfg.append_block_param(done, I64);
        for &helper in helpers {
            let is_it = self.to.ins().icmp_imm_u(IntCC::Equal, number, i64::from(helper));
            let [here, next] = [0, 1].map(|_| self.to.func.dfg.make_block());
            self.to.ins().brif(is_it, here, &[], next, &[]);
            self.to.insert_block(here);
            let result = self.call(HELPERS, helper, self.args_of_call());
            self.to.ins().jump(done, &[BlockArg::Value(result)]);
            self.to.insert_block(next);
        }
        self.can_end_early = true;
        let what = self.constant(FaultKind::NoHelper.word(self.at));
        self.to.ins().jump(self.fault, &[what, number].map(BlockArg::Value));
        self.to.insert_block(done);
        r0
    }

    /// r1 to r5.
    pub(super) fn args_of_call(&self) -> [Value; PARAMS - 1] {
        std::array::from_fn(|n| self.regs[1 + n])
    }

    pub(super) fn call(&mut self, namespace: u32, index: u32, of: [Value; PARAMS - 1]) -> Value {
        let callee = self.callee(namespace, index);
        let mut args = [self.run; PARAMS];
        args[..PARAMS - 1].copy_from_slice(&of);
        let call = self.to.ins().call(callee, &args);
        self.to.func.dfg.first_result(call)
    }

    fn callee(&mut self, namespace: u32, index: u32) -> FuncRef {
        if let Some(known) = self.callees.get(&(namespace, index)) {
            return *known;
        }
        let name = self.to.func.declare_imported_user_function(UserExternalName { namespace, index });
        let signature = self.to.func.import_signature(signature());
        let callee = self.to.func.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        });
        self.callees.insert((namespace, index), callee);
        callee
    }

    fn returned(&mut self, r0: Value) {
        let zero = self.constant(0);
        self.regs[1..6].fill(zero);
        self.regs[0] = r0;
    }
}
