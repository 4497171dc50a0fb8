//! Why no jump can stand at a site.
//!
//! For:     plans.
//! State:   the fact.
//! Context: control; touches nothing.
//! Keeps:   nothing.
//! Checked: testkit `refusals`, `signals`.

use insn::Refusal;

/// Why no jump can stand at a site.
#[derive(Debug)]
pub(super) enum NoJump {
    Refused(Refusal),
    /// The instruction that may fault, in Go code.
    MayFault(u64),
    /// The call that would be displaced, where calls and returns are checked.
    ShadowStack(u64),
    /// A Go function that does not make sure of its stack.
    TooLittleStack,
}

impl std::fmt::Display for NoJump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoJump::Refused(why) => why.fmt(f),
            NoJump::ShadowStack(at) => {
                write!(f, "the call at {at:#x} cannot be displaced: the process has a shadow stack")
            }
            NoJump::MayFault(at) => {
                write!(f, "{at:#x} may fault, and Go makes a panic of a fault at its own addresses only")
            }
            NoJump::TooLittleStack => {
                write!(f, "it is a Go function without a stack check: too little stack for a handler")
            }
        }
    }
}
