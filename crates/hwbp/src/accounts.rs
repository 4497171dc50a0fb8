//! Reserving, releasing and changing, whatever the engine.
//!
//! For:     watchpoints, and whoever hands out debug registers.
//! State:   the machine and one engine.
//! Context: target, control; may wait for locks. `try_reserve` does not wait.
//! Keeps:   C1 on each CPU: breakpoints bound to it, and those of any one task, fit into its registers.
//!          C2 a refused request changes nothing.
//!          C3 what is dropped is released.
//! Checked: `tests/agree.rs`, `tests/scenarios.rs`.
//! Source:  kernel `kernel/events/hw_breakpoint.c` (v7.0).

use crate::broken::broken;
#[cfg(feature = "broken")]
use crate::engine::make_broken;
use crate::engine::{Engine, EngineKind, Token, make};
use crate::{Kind, Machine, Place, Refused, Request};
use core::fmt;

/// Who has which debug registers.
///
/// ```
/// use hwbp::{Accounts, EngineKind, Machine, Place, Request};
/// let accounts = Accounts::new(Machine::x86_64(2), EngineKind::Histogram);
/// let held: Vec<_> =
///     (0..4).map(|_| accounts.reserve(Request::data(Place::Task(7)))).collect::<Result<_, _>>()?;
/// let fifth = accounts.reserve(Request::data(Place::Task(7))).unwrap_err();
/// assert_eq!(fifth.to_string(), "all 4 debug registers are taken for task 7");
/// drop(held);
/// assert!(!accounts.is_used());
/// # Ok::<(), hwbp::Refused>(())
/// ```
pub struct Accounts {
    machine: Machine,
    engine: Box<dyn Engine>,
    #[cfg(feature = "broken")]
    broken: Option<crate::Broken>,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({:?})", self.machine)
    }
}

/// One debug register on every CPU where it is needed, released when this is dropped.
#[must_use = "dropping it releases the debug register"]
pub struct Reservation<'a> {
    accounts: &'a Accounts,
    request: Request,
    token: Option<Token>,
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({:?})", self.request)
    }
}

impl Accounts {
    /// Empty accounts.
    pub fn new(machine: Machine, engine: EngineKind) -> Accounts {
        Accounts {
            machine,
            engine: make(engine, machine),
            #[cfg(feature = "broken")]
            broken: None,
        }
    }

    /// Accounts with something left out, for a test that must notice.
    #[cfg(feature = "broken")]
    #[doc(hidden)]
    pub fn broken(machine: Machine, engine: EngineKind, how: crate::Broken) -> Accounts {
        Accounts { machine, engine: make_broken(engine, machine, how), broken: Some(how) }
    }

    /// What is accounted.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Takes a debug register wherever the breakpoint could become active.
    ///
    /// # Cost
    /// Histogram engine: the same for any number of tasks and CPUs, unless the task has breakpoints that are
    /// bound to a CPU, or gets its first: then one step for each CPU. `bench breakpoint`.
    /// # Errors
    /// See [`Refused`].
    pub fn reserve(&self, request: Request) -> Result<Reservation<'_>, Refused> {
        self.reserve_by(request, true)
    }

    /// [`reserve`](Self::reserve) for callers that must not wait, such as debuggers.
    ///
    /// # Errors
    /// [`Refused::Locked`] if any lock that it needs is held, beside those of `reserve`.
    #[doc(alias = "dbg_reserve")]
    pub fn try_reserve(&self, request: Request) -> Result<Reservation<'_>, Refused> {
        self.reserve_by(request, false)
    }

    fn reserve_by(&self, request: Request, may_wait: bool) -> Result<Reservation<'_>, Refused> {
        self.check(request)?;
        let token = self.engine.reserve(request, may_wait)?;
        Ok(Reservation { accounts: self, request, token: Some(token) })
    }

    /// Takes one debug register on each CPU, for a breakpoint on all that runs; all or nothing.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), for the first CPU that has none.
    pub fn reserve_wide(&self, kind: Kind) -> Result<Vec<Reservation<'_>>, Refused> {
        (0..self.machine.cpus).map(|cpu| self.reserve(Request { place: Place::Cpu(cpu), kind })).collect()
    }

    /// How many debug registers are taken on the fullest CPU where the breakpoint could become active.
    ///
    /// # Errors
    /// A place or kind that the machine does not have.
    pub fn used(&self, request: Request) -> Result<u32, Refused> {
        self.check(request)?;
        Ok(self.engine.used(request))
    }

    /// True if anything is reserved.
    pub fn is_used(&self) -> bool {
        self.engine.is_used()
    }

    fn check(&self, request: Request) -> Result<(), Refused> {
        let cpus = self.machine.cpus;
        match request.place {
            Place::Cpu(cpu) | Place::TaskOnCpu(_, cpu) if cpu >= cpus => {
                Err(Refused::NoSuchCpu { cpu, cpus })
            }
            _ if self.machine.slots(request.kind) == 0 => Err(Refused::NoSuchKind { kind: request.kind }),
            _ => Ok(()),
        }
    }
}

impl Reservation<'_> {
    /// What was reserved.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Changes the kind. The place cannot change, nor can anything else that is accounted.
    ///
    /// # Errors
    /// See [`Refused`]; then the reservation is as before.
    pub fn modify(&mut self, to: Request) -> Result<(), Refused> {
        let old = self.request;
        if to.place != old.place {
            return Err(Refused::OtherPlace { place: old.place, asked: to.place });
        }
        self.accounts.check(to)?;
        let engine = &self.accounts.engine;
        let Some(token) = self.token.take() else { return Ok(()) };
        match engine.exchange(old, token, to) {
            (token, None) => (self.token, self.request) = (Some(token), to),
            (token, Some(refused)) => {
                if broken!(self.accounts, ModifyForgets) {
                    let _ = engine.release(old, token, true);
                } else {
                    self.token = Some(token);
                }
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Releases it, or gives it back if a lock is held.
    ///
    /// # Errors
    /// The reservation.
    #[doc(alias = "dbg_release")]
    pub fn try_release(mut self) -> Result<(), Self> {
        let Some(token) = self.token.take() else { return Ok(()) };
        match self.accounts.engine.release(self.request, token, false) {
            Ok(()) => Ok(()),
            Err(token) => {
                self.token = Some(token);
                Err(self)
            }
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // It waits, so it is never refused.
            let _ = self.accounts.engine.release(self.request, token, true);
        }
    }
}
