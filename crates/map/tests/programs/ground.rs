//! Memory that a test has in two ways: as a target, which believes it, and as a controller, which does not.

use map::{Form, Ground, Maps, Plan, Restartable, Spec, Table};
use percpu::RseqOffset;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::Untrusted;

/// Words that are never freed.
#[derive(Clone, Copy)]
pub struct Words(pub &'static [AtomicU64]);

impl Ground for Words {
    fn memory(&self) -> Untrusted<'_> {
        // SAFETY: these words, which are never freed and used as atomics alone.
        unsafe { Untrusted::new(NonNull::from(self.0).cast(), size_of_val(self.0)) }
    }
}

impl Words {
    pub fn new(bytes: usize) -> Words {
        // Forms are read by their address, which wants lines of their own.
        #[repr(align(4096))]
        struct Page(#[allow(dead_code)] [AtomicU64; 512]);
        let pages: Vec<Page> =
            (0..bytes.div_ceil(4096)).map(|_| Page([const { AtomicU64::new(0) }; 512])).collect();
        let pages: &'static [Page] = pages.leak();
        // SAFETY: pages are words, one behind the other.
        Words(unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), pages.len() * 512) })
    }

    /// The form of the table with this handle.
    pub fn form(&self, maps: &Maps, handle: usize) -> &'static Form {
        let at = self.0[maps.handle(handle).unwrap() / 8].load(Relaxed) as usize;
        let form = self.0[at / 8..].as_ptr().cast::<Form>();
        // SAFETY: `Maps` laid a table out there, in words that are never freed.
        unsafe { &*form }
    }

    /// The table with this handle, as a target has it.
    pub fn table(&self, maps: &Maps, handle: usize) -> Table {
        // SAFETY: the form of that table, which nobody changes.
        unsafe { Table::at(self.form(maps, handle)) }
    }
}

/// Words in which these maps go on.
pub fn settled(maps: &mut Maps) -> Words {
    let words = Words::new(maps.len());
    let image = maps.image();
    for (to, from) in words.0.iter().zip(image.as_chunks::<8>().0) {
        to.store(u64::from_ne_bytes(*from), Relaxed);
    }
    maps.go_on_in(Arc::new(words)).unwrap();
    words
}

/// Maps of these tables, moved to words.
pub fn moved(tables: Vec<Spec>, ring_bytes: usize) -> (Maps, Words) {
    let mut maps = Maps::new(&Plan { tables, ring_bytes, ..Plan::default() }).unwrap();
    let words = settled(&mut maps);
    (maps, words)
}

/// How threads of this process add.
pub fn way() -> Restartable {
    // SAFETY: the C library's, of whose threads are all.
    unsafe { Restartable::new(RseqOffset::detect()) }
}
