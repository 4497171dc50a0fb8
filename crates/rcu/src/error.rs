//! What bad use is called.
//!
//! For:     readers, grace periods and clean-up that refuse.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   E1 every refusal names the rule that was broken and the facts.
//! Checked: `tests/restrictions.rs`, one test per rule.
//! Source:  the six restrictions are the SRCU-lite series' (September 2024).

use crate::{Flavour, FlavourSet};
use core::fmt;

/// The rules of use. The first six are those of lite readers, numbered as their series has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// 1: a domain has one flavour for ever (normal and sigsafe count as one).
    OneFlavour,
    /// 2: a reader runs where its domain's process-wide fence reaches it.
    Watched,
    /// 3: grace periods of fenceless readers are never expedited by themselves.
    NoAutoExpedite,
    /// 4: a plain grace period of fenceless readers takes at least two process-wide fences.
    TwoFences,
    /// 5: an expedited request takes no lesser fence than a plain one.
    SameFence,
    /// 6: no lite reader in a signal handler.
    NotInHandler,
    /// A fast, updown or tasks domain is declared when it is made.
    Declared,
    /// No waiting for a grace period inside a reader of the same domain.
    NoWaitInReader,
    /// A reader leaves as often as it entered, on its own thread unless it is updown.
    Balanced,
    /// No barrier in a callback of the same domain, which would wait for itself.
    NoBarrierInCallback,
    /// A callback node is queued once at a time.
    QueuedOnce,
}

impl Rule {
    /// The restriction's number in the lite series, if it is one of the six.
    pub const fn lite_number(self) -> Option<u8> {
        match self {
            Self::OneFlavour => Some(1),
            Self::Watched => Some(2),
            Self::NoAutoExpedite => Some(3),
            Self::TwoFences => Some(4),
            Self::SameFence => Some(5),
            Self::NotInHandler => Some(6),
            _ => None,
        }
    }
}

/// One broken rule with its facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Misuse {
    /// Rule [`OneFlavour`](Rule::OneFlavour).
    Mixed {
        /// What the domain had recorded or declared.
        recorded: FlavourSet,
        /// What the reader asked for.
        asked: Flavour,
    },
    /// Rule [`Declared`](Rule::Declared).
    Undeclared {
        /// What the reader asked for.
        asked: Flavour,
    },
    /// Rule [`Watched`](Rule::Watched).
    NotWatched {
        /// The process whose fences drive the domain.
        owner: u32,
        /// The process of the reader.
        caller: u32,
    },
    /// Rule [`NoAutoExpedite`](Rule::NoAutoExpedite).
    AutoExpedite {
        /// The declared flavour.
        flavour: Flavour,
    },
    /// Rule [`TwoFences`](Rule::TwoFences).
    TooFewFences {
        /// Process-wide fences seen in one grace period.
        seen: u64,
    },
    /// Rule [`SameFence`](Rule::SameFence).
    LesserFence,
    /// Rule [`NotInHandler`](Rule::NotInHandler).
    InHandler {
        /// The flavour of the reader.
        flavour: Flavour,
    },
    /// Rule [`NoWaitInReader`](Rule::NoWaitInReader).
    WaitInReader {
        /// The flavour of the reader that the caller is in.
        flavour: Flavour,
        /// How deep it is nested.
        nesting: u32,
    },
    /// Rule [`Balanced`](Rule::Balanced).
    Unbalanced {
        /// The flavour of the reader that left and had not entered on this thread.
        flavour: Flavour,
    },
    /// Rule [`NoBarrierInCallback`](Rule::NoBarrierInCallback).
    BarrierInCallback,
    /// Rule [`QueuedOnce`](Rule::QueuedOnce).
    QueuedTwice,
}

impl Misuse {
    /// The rule that was broken.
    pub const fn rule(self) -> Rule {
        match self {
            Self::Mixed { .. } => Rule::OneFlavour,
            Self::Undeclared { .. } => Rule::Declared,
            Self::NotWatched { .. } => Rule::Watched,
            Self::AutoExpedite { .. } => Rule::NoAutoExpedite,
            Self::TooFewFences { .. } => Rule::TwoFences,
            Self::LesserFence => Rule::SameFence,
            Self::InHandler { .. } => Rule::NotInHandler,
            Self::WaitInReader { .. } => Rule::NoWaitInReader,
            Self::Unbalanced { .. } => Rule::Balanced,
            Self::BarrierInCallback => Rule::NoBarrierInCallback,
            Self::QueuedTwice => Rule::QueuedOnce,
        }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule();
        match rule.lite_number() {
            Some(n) => write!(f, "rule {rule:?} (restriction {n} of lite): ")?,
            None => write!(f, "rule {rule:?}: ")?,
        }
        match *self {
            Self::Mixed { recorded, asked } => {
                write!(f, "{asked} reader on a domain that has {recorded} readers")
            }
            Self::Undeclared { asked } => {
                write!(f, "{asked} reader on a domain that was not declared for it")
            }
            Self::NotWatched { owner, caller } => {
                write!(f, "reader in process {caller} on a domain whose fences reach process {owner}")
            }
            Self::AutoExpedite { flavour } => write!(f, "automatic expediting asked for {flavour} readers"),
            Self::TooFewFences { seen } => write!(f, "grace period with {seen} process-wide fences"),
            Self::LesserFence => write!(f, "expedited grace period without a process-wide fence"),
            Self::InHandler { flavour } => write!(f, "{flavour} reader in a signal handler"),
            Self::WaitInReader { flavour, nesting } => {
                write!(
                    f,
                    "wait for a grace period inside a {flavour} reader of the same domain, nested {nesting}"
                )
            }
            Self::Unbalanced { flavour } => {
                write!(f, "{flavour} reader left that had not entered on this thread")
            }
            Self::BarrierInCallback => f.write_str("barrier in a callback of the same domain"),
            Self::QueuedTwice => f.write_str("callback queued that waits already"),
        }
    }
}

impl core::error::Error for Misuse {}
