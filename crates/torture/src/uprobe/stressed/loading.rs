//! A library with probed functions that is loaded and unloaded.
//!
//! For:     probes in code that comes and goes.
//! State:   the library, while it is loaded.
//! Context: target.
//! Keeps:   L1 its functions are called between load and unload alone.
//! Checked: `tests/uprobe_live.rs`.

use super::roles::Part;
use super::shared::LIBRARY_FUNCTIONS;
use std::ffi::{CString, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// What the compiler makes the library of. Function `n` returns what it is given, plus n + 1.
pub fn source() -> String {
    let head = "static unsigned long again(unsigned long x, int n) { volatile unsigned long y = x; \
                while (n--) y++; return y; }\n";
    let one =
        |n| format!("unsigned long stress_lib_fn_{n}(unsigned long x) {{ return again(x + {n}, 1); }}\n");
    (0..LIBRARY_FUNCTIONS).map(one).fold(head.to_string(), |all, one| all + &one)
}

type Function = extern "C" fn(u64) -> u64;

struct Library(*mut c_void);

impl Library {
    fn load(path: &CString) -> Option<Library> {
        // SAFETY: the path ends in zero; the library has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!handle.is_null()).then_some(Library(handle))
    }

    fn function(&self, n: usize) -> Option<Function> {
        let name = CString::new(format!("stress_lib_fn_{n}")).ok()?;
        // SAFETY: the handle is of a loaded library, and the name ends in zero.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if at.is_null() {
            return None;
        }
        // SAFETY: `source` declares the function so; the caller calls it while the library is loaded.
        Some(unsafe { std::mem::transmute::<*mut c_void, Function>(at) })
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle is of a loaded library, and nothing of it is used afterwards.
        unsafe { libc::dlclose(self.0) };
    }
}

/// Loads the library, calls it, unloads it.
pub fn dlopen(part: Part) {
    let mut rng = part.rng();
    let Ok(path) = CString::new(part.orders.library.clone()) else { return };
    while !part.shared.is_over() {
        let Some(library) = Library::load(&path) else {
            part.shared.refused.fetch_add(1, Relaxed);
            return;
        };
        part.shared.loads.fetch_add(1, Relaxed);
        let functions: Vec<_> = (0..LIBRARY_FUNCTIONS).map_while(|n| library.function(n)).collect();
        for _ in 0..rng.below(50) {
            for (n, f) in functions.iter().enumerate() {
                let x = rng.next() >> 8;
                part.shared.library[n].fetch_add(1, Relaxed);
                if f(x) != x + n as u64 + 1 {
                    part.shared.wrong.fetch_add(1, Relaxed);
                }
            }
            if rng.one_in(4) {
                std::thread::sleep(Duration::from_micros(rng.below(1000)));
            }
        }
        drop(library);
        std::thread::sleep(Duration::from_micros(rng.below(10_000)));
    }
}
