//! What a process's memory says of our memory in it, believed as far as what it really maps bears it out.
//!
//! For:     recovery, and everybody who meets another controller's probes: the headers lie in memory that the target
//!          can write.
//! State:   a snapshot of the mappings; files of the process, opened when first asked for.
//! Context: control.
//! Keeps:   B1 only memory of a kind that we map is taken for ours: an arena is a whole memfd, mapped shared; a region
//!             is private memory without a file, code behind a table.
//!          B2 a jump of ours stands in code of a file, and what is to be put back there is what that file has.
//!          B3 what is read for it is bounded: regions of one arena by the wire format, arenas by `ARENAS_MAX`.
//! Checked: tests below; testkit `forged`.

use crate::enter::semaphore;
use crate::find::maps::mapping_at;
use image::{Addr, ElfImage, Mapping, Process};
use std::collections::HashMap;
use std::ops::Range;
use wire::{ARENA_NAME, FAMILY_NAME, RegionDesc, TrampolineHeader};

/// Where in the arena's file a mapping begins that only keeps a place for a region.
pub(crate) const RESERVED_OFFSET: u64 = 4096;
/// More controllers in one process are not believed in.
pub(crate) const ARENAS_MAX: usize = 256;

/// The mappings that are called as our arenas are, and are of their kind.
pub(crate) fn arenas(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    let marker = format!("/memfd:{ARENA_NAME}");
    let is_of_its_kind = move |m: &&Mapping| {
        let p = m.permissions;
        m.path.as_os_str() == marker.as_str()
            && m.is_deleted
            && m.offset.0 == 0
            && p.is_shared
            && p.is_writable
            && !p.is_executable
    };
    mappings.iter().filter(is_of_its_kind).take(ARENAS_MAX)
}

/// Mappings that keep a place for a region of this arena.
pub(crate) fn reserved<'a>(mappings: &'a [Mapping], arena: &'a Mapping) -> impl Iterator<Item = &'a Mapping> {
    mappings.iter().filter(|m| is_reserved(m) && m.file == arena.file)
}

/// The range, if the process maps there what a family shares, and nothing else.
pub(crate) fn shared_maps(mappings: &[Mapping], range: Range<u64>) -> Option<Range<u64>> {
    let name = format!("/memfd:{}", FAMILY_NAME.to_string_lossy());
    let is_it = |m: &Mapping| {
        let p = m.permissions;
        m.path.as_os_str() == name.as_str()
            && m.is_deleted
            && m.offset.0 == 0
            && p.is_shared
            && p.is_writable
            && !p.is_executable
            && (m.range.start.0..m.range.end.0) == range
    };
    mapping_at(mappings, range.start).filter(|m| is_it(m)).map(|_| range)
}

fn is_reserved(m: &Mapping) -> bool {
    let p = m.permissions;
    m.path.as_os_str() == format!("/memfd:{ARENA_NAME}").as_str()
        && m.is_deleted
        // Its beginning may have been taken already.
        && m.offset.0 >= RESERVED_OFFSET
        && p.is_shared
        && !(p.is_readable || p.is_writable || p.is_executable)
}

/// Whether the process maps a region of ours there, or one that its controller had not finished.
pub(crate) fn is_region(mappings: &[Mapping], region: &RegionDesc) -> bool {
    if region.is_empty() {
        let is_plain = |m: &Mapping| !(m.permissions.is_writable && m.permissions.is_executable);
        return covers(mappings, region.table..region.end, |m| {
            is_reserved(m) || is_nobodys(m) && is_plain(m)
        });
    }
    let is_code = |m: &Mapping| m.permissions.is_executable && !m.permissions.is_writable;
    let is_table = |m: &Mapping| m.permissions.is_writable && !m.permissions.is_executable;
    covers(mappings, region.code..region.end, |m| is_nobodys(m) && is_code(m))
        && covers(mappings, region.table..region.code, |m| is_nobodys(m) && is_table(m))
}

/// Private memory without a file or a name of the kernel's; who maps may name it.
fn is_nobodys(m: &Mapping) -> bool {
    let name = m.path.as_os_str().as_encoded_bytes();
    m.file.is_none() && !m.permissions.is_shared && (name.is_empty() || name.starts_with(b"[anon:"))
}

/// Whether mappings that are `right` lie there without a gap.
fn covers(mappings: &[Mapping], mut range: Range<u64>, right: impl Fn(&Mapping) -> bool) -> bool {
    while range.start < range.end {
        let here = mapping_at(mappings, range.start);
        let Some(m) = here.filter(|m| right(m)) else { return false };
        range.start = m.range.end.0;
    }
    true
}

/// The files of a process, to ask them what a site had.
pub(crate) struct Originals<'a> {
    mappings: &'a [Mapping],
    process: Option<Process>,
    /// By bias; `None` for what cannot be read.
    images: HashMap<u64, Option<ElfImage>>,
}

impl<'a> Originals<'a> {
    pub fn of(pid: i32, mappings: &'a [Mapping]) -> Originals<'a> {
        Originals { mappings, process: Process::read(pid as u32).ok(), images: HashMap::new() }
    }

    /// Whether a controller can have written this: its jump stands in a file's code, and the bytes under it are the
    /// file's, as far as that can be read; the mark's count is in the same file's data.
    pub fn justify(&mut self, header: &TrampolineHeader) -> bool {
        let site = self.mapping(header.site).filter(|m| is_text(m));
        let jump = self.mapping(header.jump_at).filter(|m| is_text(m));
        let (Some(site), Some(jump)) = (site, jump) else { return false };
        let is_count = |at: u64| {
            let page = self.mapping(at).filter(|m| m.permissions.is_writable && !m.permissions.is_shared);
            page.is_some_and(|m| m.file.is_some() && m.file == site.file)
        };
        let is_count_right = semaphore::noted(header.semaphore).is_none_or(is_count);
        let is_short_right = header.has_short == 0 || self.is_original(header.site, &header.short_original);
        is_count_right
            && site.file == jump.file
            && is_short_right
            && self.is_original(header.jump_at, &header.jump_original)
    }

    fn mapping(&self, at: u64) -> Option<&'a Mapping> {
        mapping_at(self.mappings, at)
    }

    /// True also for a file that cannot be read any more: a program is upgraded while it runs.
    fn is_original(&mut self, at: u64, bytes: &[u8]) -> bool {
        let Some(module) = self.process.as_ref().and_then(|p| p.module_at(Addr(at)).map(|m| (p.pid, m)))
        else {
            return true;
        };
        let (pid, module) = module;
        let image = self.images.entry(module.bias.0).or_insert_with(|| module.open(pid).ok());
        let found = image.as_ref().map(|image| image.bytes(module.image_addr(Addr(at)), bytes.len()));
        found.is_none_or(|found| found == Some(bytes))
    }
}

/// Code of a file, or the kernel's in every process.
fn is_text(m: &Mapping) -> bool {
    let p = m.permissions;
    p.is_executable && !p.is_shared && (m.file.is_some() || m.is_vdso())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(text: &str) -> Vec<Mapping> {
        image::maps::parse_maps(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_a_whole_shared_memfd_of_our_name_is_an_arena() {
        let all = maps(
            "1000-5000 rw-s 00000000 00:01 10 /memfd:nanoprobe (deleted)\n\
             6000-7000 rw-p 00000000 00:01 11 /memfd:nanoprobe (deleted)\n\
             8000-9000 rw-s 00001000 00:01 12 /memfd:nanoprobe (deleted)\n\
             a000-b000 rw-s 00000000 00:01 13 /memfd:nanoprobe\n\
             c000-d000 rw-s 00000000 00:01 14 /memfd:nanoprobe2 (deleted)\n\
             e000-f000 r--s 00000000 00:01 15 /memfd:nanoprobe (deleted)\n",
        );
        let found: Vec<u64> = arenas(&all).map(|m| m.range.start.0).collect();
        assert_eq!(found, [0x1000]);
        let many: String = (1..1000u64)
            .map(|i| {
                format!("{:x}-{:x} rw-s 0 00:01 9 /memfd:nanoprobe (deleted)\n", i << 16, (i << 16) + 4096)
            })
            .collect();
        assert_eq!(arenas(&maps(&many)).count(), ARENAS_MAX);
    }

    #[test]
    fn maps_of_a_family_are_believed_to_be_where_such_a_file_is_mapped_whole() {
        let all = maps(
            "1000-5000 rw-s 00000000 00:01 10 /memfd:nanoprobe-maps (deleted)\n\
             6000-8000 rw-s 00001000 00:01 10 /memfd:nanoprobe-maps (deleted)\n\
             8000-9000 rw-p 00000000 00:01 10 /memfd:nanoprobe-maps (deleted)\n\
             a000-b000 rw-s 00000000 00:01 10 /memfd:nanoprobe-mapsx (deleted)\n",
        );
        assert_eq!(shared_maps(&all, 0x1000..0x5000), Some(0x1000..0x5000));
        for wrong in
            [0..0, 0..0x5000, 0x1000..0x4000, 0x2000..0x5000, 0x6000..0x8000, 0x8000..0x9000, 0xa000..0xb000]
        {
            assert_eq!(shared_maps(&all, wrong), None);
        }
        assert_eq!(arenas(&all).count(), 0);
    }

    #[test]
    fn a_region_whose_controller_died_between_its_mappings_is_one() {
        let region = RegionDesc { table: 0x2000, code: 0x2000, blocks: 0x9000, end: 0x9000 };
        let rest = |offset| format!("4000-9000 ---s {offset} 00:01 10 /memfd:nanoprobe (deleted)\n");
        let table = "1000-4000 rw-p 00000000 00:00 0 \n";
        assert!(is_region(&maps(&format!("{table}{}", rest("00003000"))), &region));
        assert!(!is_region(&maps(&format!("{table}{}", rest("00000000"))), &region));
        assert!(!is_region(&maps(table), &region));
    }

    #[test]
    fn a_region_is_private_memory_without_a_file_and_code_behind_a_table() {
        let region = RegionDesc { table: 0x1000, code: 0x2000, blocks: 0x2940, end: 0x5000 };
        let table = "1000-2000 rw-p 0 00:00 0 \n";
        assert!(is_region(&maps(&format!("{table}2000-5000 r-xp 0 00:00 0 \n")), &region));
        assert!(is_region(
            &maps(&format!("{table}2000-4000 r-xp 0 00:00 0 \n4000-6000 r-xp 0 00:00 0 \n")),
            &region
        ));
        assert!(is_region(&maps(&format!("{table}2000-5000 r-xp 0 00:00 0 [anon:ours]\n")), &region));
        for code in [
            "2000-5000 rw-p 0 00:00 0 ",
            "2000-5000 rwxp 0 00:00 0 ",
            "2000-5000 r-xs 0 00:00 0 ",
            "2000-5000 r-xp 0 08:01 7 /lib/a.so",
            "2000-5000 r-xp 0 00:00 0 [vdso]",
            "2000-4000 r-xp 0 00:00 0 ",
            "3000-5000 r-xp 0 00:00 0 ",
        ] {
            assert!(!is_region(&maps(&format!("{table}{code}\n")), &region), "{code}");
        }
        for table in
            ["1000-2000 rw-p 0 00:00 0 [heap]", "1000-2000 r--p 0 00:00 0 ", "1000-2000 rw-s 0 00:01 7 /x"]
        {
            assert!(!is_region(&maps(&format!("{table}\n2000-5000 r-xp 0 00:00 0 \n")), &region), "{table}");
        }
    }
}
