//! Where a cache gets its grace periods from.
//!
//! For:     `free_rcu`, and returning memory to the system.
//! State:   one default domain.
//! Context: control.
//! Keeps:   E1 the default domain's readers may run in signal handlers (flavour fast).
//! Checked: tests/life.rs, `torture mem`.

use rcu::Cookie;
#[cfg(not(loom))]
use rcu::{Domain, Flavour};
#[cfg(not(loom))]
use std::sync::{Arc, OnceLock};

/// Grace periods that can be asked for and looked at, without waiting.
///
/// ```compile_fail,E0200
/// struct Never;
/// impl objcache::Grace for Never { // not without `unsafe`
///     fn start(&self, _: bool) -> rcu::Cookie { rcu::Cookie::COMPLETED }
///     fn is_over(&self, _: rcu::Cookie) -> bool { true }
/// }
/// ```
///
/// # Safety
/// [`is_over`](Self::is_over) must be true of a cookie of [`start`](Self::start) only after every reader that was inside
/// when it was taken has left: objects are used again, and their memory returned, by its word.
pub unsafe trait Grace: Send + Sync {
    /// A cookie of a grace period that begins after now and is sure to come; `hurry` if memory waits for it.
    fn start(&self, hurry: bool) -> Cookie;

    /// True once the cookie's grace period is over.
    fn is_over(&self, cookie: Cookie) -> bool;
}

// SAFETY: a cookie is done after a whole grace period that began after it was taken (rcu S1, G1).
#[cfg(not(loom))]
unsafe impl Grace for Domain {
    fn start(&self, hurry: bool) -> Cookie {
        if hurry { self.start_poll_expedited() } else { self.start_poll() }
    }

    fn is_over(&self, cookie: Cookie) -> bool {
        self.poll_state(cookie)
    }
}

// SAFETY: as for `T`.
unsafe impl<T: Grace + ?Sized> Grace for &T {
    fn start(&self, hurry: bool) -> Cookie {
        (**self).start(hurry)
    }

    fn is_over(&self, cookie: Cookie) -> bool {
        (**self).is_over(cookie)
    }
}

/// The domain of caches that were given no other; its readers are fast ones.
///
/// # Panics
/// If there is no memory for it.
#[cfg(not(loom))]
pub fn domain() -> &'static Arc<Domain> {
    static DOMAIN: OnceLock<Arc<Domain>> = OnceLock::new();
    DOMAIN.get_or_init(|| {
        let builder = Domain::builder("objcache").flavour(Flavour::Fast).checked(false);
        Arc::new(builder.build().unwrap_or_else(|error| panic!("{error}")))
    })
}
