//! Checklist line 3: every error of `register` with its number, and nothing left behind.

mod kit;

use kit::*;
use probe::fake::{FakeFile, FakeSpace};
use probe::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn refused(
    w: &World,
    file: FakeFile,
    offset: u64,
    ref_ctr: Option<u64>,
    c: Arc<Count>,
) -> (RegisterError, i32) {
    let error = w.registry.register(&file.shared(), offset, ref_ctr, c).err().expect("refused");
    assert!(w.registry.find(file_id(), offset).is_none() && w.space.breakpoints().is_empty());
    assert_eq!(w.registry.stats().made, w.registry.stats().freed);
    (error, error.errno())
}

fn file_id() -> FileId {
    FILE
}

#[test]
fn line_3_what_is_wrong_with_the_arguments_is_said() {
    let w = world(Config::default());
    let nops = || FakeFile::nops(FILE, 4096);
    let nothing = Arc::new(Count { is_ret_only: true, ..Count::default() });
    assert_eq!(refused(&w, nops(), 8, None, nothing), (RegisterError::NoHandler, 22));
    let beyond = RegisterError::BeyondEnd { offset: 4097, size: 4096 };
    assert_eq!(refused(&w, nops(), 4097, None, Count::new()), (beyond, 22));
    let odd = RegisterError::RefCtrMisaligned { offset: 65 };
    assert_eq!(refused(&w, nops(), 8, Some(65), Count::new()), (odd, 22));
    let unreadable = FakeFile { is_readable: false, ..nops() };
    assert_eq!(refused(&w, unreadable, 8, None, Count::new()), (RegisterError::Unreadable, 5));
}

#[test]
fn line_3_the_end_of_the_file_passes_and_has_no_bytes() {
    let w = world(Config::default());
    let error = RegisterError::Install(InstallError::NoBytes { offset: 4096 });
    assert_eq!(refused(&w, FakeFile::nops(FILE, 4096), 4096, None, Count::new()), (error, 5));
}

#[test]
fn line_3_a_bad_instruction_is_not_seen_before_it_is_mapped() {
    let w = unmapped(Config::default());
    let trap = FakeFile { byte: 0xcc, ..FakeFile::nops(FILE, 4096) }.shared();
    let registered = w.registry.register(&trap, 8, None, Count::new()).expect("nothing looked at it");
    w.space.map(FILE, 0..4096, BASE);
    w.registry.mapped(SPACE, FILE, 0..4096);
    assert!(w.space.breakpoints().is_empty());
    w.drop_nosync(registered);
}

#[test]
fn line_3_a_space_that_fails_half_way_is_undone() {
    let w = world(Config::default());
    let second = FakeSpace::new(11);
    second.map(FILE, 0..4096, BASE);
    second.installs_left.store(0, Relaxed);
    w.registry.add_space(second.clone());
    let error = RegisterError::Install(InstallError::Space(SpaceError(14)));
    assert_eq!(refused(&w, FakeFile::nops(FILE, 4096), 8, None, Count::new()), (error, 14));
    assert!(second.breakpoints().is_empty());
}

#[test]
fn a_semaphore_is_rolled_back_and_never_below_zero() {
    let w = world(Config::default());
    w.space.map_ref_ctr(FILE, 64, 0);
    w.space.installs_left.store(0, Relaxed);
    assert!(w.registry.register(&w.file, 8, Some(64), Count::new()).is_err());
    assert_eq!(w.space.ref_ctr(FILE, 64), Some(0));
    w.space.map_ref_ctr(FILE, 64, i16::MAX as u16);
    let full = RefCtrError { value: i16::MAX as u16, delta: 1 };
    let error = w.registry.register(&w.file, 8, Some(64), Count::new()).err().unwrap();
    assert_eq!((error, error.errno()), (RegisterError::Install(InstallError::RefCtr(full)), 22));
    w.space.installs_left.store(u64::MAX, Relaxed);
    w.space.map_ref_ctr(FILE, 64, 0);
    let registered = w.registry.register(&w.file, 8, Some(64), Count::new()).unwrap();
    w.space.map_ref_ctr(FILE, 64, 0); // the program cleared its own semaphore
    assert_eq!(w.registry.unregister_nosync(registered), Left { breakpoints: 1 });
    assert_eq!(w.space.ref_ctr(FILE, 64), Some(0));
}

#[test]
fn a_breakpoint_that_cannot_be_removed_keeps_its_uprobe() {
    let w = world(Config::default());
    let registered = w.register(8, &Count::new());
    w.space.removes_left.store(0, Relaxed);
    assert_eq!(w.registry.unregister_nosync(registered), Left { breakpoints: 1 });
    w.registry.unregister_sync();
    assert_eq!(w.hit(8), Hit::Handled, "it is still found, and nobody is called");
    let stats = w.registry.stats();
    assert_eq!((stats.leaked, stats.freed, stats.retired), (1, 0, 0));
}
