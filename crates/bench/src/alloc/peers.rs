//! Other allocators: the C library's, and those whose libraries are installed.
//!
//! For:     `bench alloc`.
//! State:   none; a library that was loaded stays.
//! Context: control.
//! Keeps:   P1 a name that cannot be measured is left out with the reason.
//! Checked: `each_allocator_has_a_row_and_loses_nothing`.

use super::Source;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

pub const NAMES: [&str; 5] = ["malloc", "jemalloc", "mimalloc", "tcmalloc", "tcmalloc-minimal"];

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(object: *mut c_void);
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

pub struct Peer {
    size: usize,
    malloc: Malloc,
    free: Free,
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library was opened and stays open; the name is a string.
    let found = unsafe { dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("it has no {}", name.to_string_lossy())) } else { Ok(found) }
}

impl Peer {
    /// The allocator of that name, in the place of malloc for this benchmark alone.
    pub fn load(name: &str, size: usize) -> Result<Peer, String> {
        let file = match name {
            "jemalloc" => "libjemalloc.so.2",
            "mimalloc" => "libmimalloc.so.2",
            "tcmalloc" => "libtcmalloc.so.4",
            "tcmalloc-minimal" => "libtcmalloc_minimal.so.4",
            _ => return Ok(Peer { size, malloc, free }),
        };
        let file_name = CString::new(file).unwrap_or_default();
        // SAFETY: the string lives for the call; the libraries are made to be loaded.
        let library = unsafe { dlopen(file_name.as_ptr(), RTLD_NOW) };
        if library.is_null() {
            return Err(format!("{file} is not installed"));
        }
        let (take, give) = if name == "mimalloc" { (c"mi_malloc", c"mi_free") } else { (c"malloc", c"free") };
        let (take, give) = (symbol(library, take)?, symbol(library, give)?);
        // SAFETY: the symbol is a function of this type in every such library.
        let malloc = unsafe { std::mem::transmute::<*mut c_void, Malloc>(take) };
        // SAFETY: as above.
        let free = unsafe { std::mem::transmute::<*mut c_void, Free>(give) };
        Ok(Peer { size, malloc, free })
    }
}

impl Source for Peer {
    #[inline(always)]
    fn take(&self) -> Option<NonNull<u8>> {
        // SAFETY: malloc takes any size.
        NonNull::new(unsafe { (self.malloc)(self.size) }.cast())
    }

    #[inline(always)]
    unsafe fn give(&self, object: NonNull<u8>) {
        // SAFETY: from this allocator's malloc, once (the caller's promise).
        unsafe { (self.free)(object.as_ptr().cast()) };
    }
}
