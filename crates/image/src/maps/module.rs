//! The images of a process: mappings of one file at one bias, taken together.
//!
//! For:     turning an address of a file into one of the process, and back.
//! State:   a snapshot; the process goes on.
//! Context: control.
//! Keeps:   D1 a file that is loaded twice is two modules.
//!          D2 every executable mapping of an ELF file is in exactly one module.
//! Checked: tests/suite/process.rs.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::{FileId, Mapping, open, read_maps};
use crate::{Addr, Bias, ElfImage, FileOffset, ImageAddr, ImageError};

/// What a module is in its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ModuleKind {
    /// The program that was executed.
    MainExecutable,
    /// Anything else that was loaded from a file: a library, the dynamic loader, a plug-in.
    Library,
    /// The code that the kernel maps into every process.
    Vdso,
}

/// One executable stretch of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecMapping {
    /// Its addresses in the process.
    pub range: Range<Addr>,
    /// Where in the file it begins.
    pub offset: FileOffset,
}

/// One image in a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Its path as the process sees it; `[vdso]` for the kernel's code.
    pub path: PathBuf,
    /// Which file it is, `None` for the vdso.
    pub file: Option<FileId>,
    /// Whether the path no longer leads to the file.
    pub is_deleted: bool,
    /// What it is in the process.
    pub kind: ModuleKind,
    /// What was added to its addresses.
    pub bias: Bias,
    /// Its executable mappings, by address.
    pub exec: Vec<ExecMapping>,
    mapping: Mapping,
}

impl Module {
    /// Where an address of the image lies in the process.
    pub fn addr(&self, image: ImageAddr) -> Addr {
        self.bias.addr(image)
    }

    /// Which address of the image an address of the process is.
    pub fn image_addr(&self, process: Addr) -> ImageAddr {
        self.bias.image(process)
    }

    /// Whether `addr` lies in one of its executable mappings.
    pub fn contains(&self, addr: Addr) -> bool {
        self.exec.iter().any(|e| e.range.contains(&addr))
    }

    /// The last part of its path.
    pub fn file_name(&self) -> &str {
        self.path.file_name().and_then(|n| n.to_str()).unwrap_or_default()
    }

    /// Its image, read from the very file that `pid` has mapped.
    ///
    /// # Errors
    /// The file was replaced on disk and cannot be reached, or is not readable; [`ImageError::NoFile`] for
    /// the vdso, whose bytes are in the process alone ([`ElfImage::from_bytes`] reads them).
    pub fn open(&self, pid: u32) -> Result<ElfImage, ImageError> {
        ElfImage::from_file(&self.open_file(pid)?, &self.path)
    }

    /// The very file that `pid` has mapped, to be read when it is wanted: it stays what it is.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_file(&self, pid: u32) -> Result<std::fs::File, ImageError> {
        Ok(open::open(pid, &self.mapping)?.0)
    }
}

/// A process and the images that it has mapped.
#[derive(Clone, Debug)]
pub struct Process {
    /// The process.
    pub pid: u32,
    /// Everything that it has mapped, by address.
    pub mappings: Vec<Mapping>,
    /// The images among them, the main executable first, then by address.
    pub modules: Vec<Module>,
    /// Executable mappings of files that are not readable ELF files, with the cause.
    pub unread: Vec<(PathBuf, Arc<ImageError>)>,
}

impl Process {
    /// What the process `pid` has mapped now.
    ///
    /// # Errors
    /// The maps cannot be read, for example because the process is gone or belongs to another user.
    pub fn read(pid: u32) -> Result<Process, ImageError> {
        let mappings = read_maps(pid)?;
        let main = MainFile::of(pid);
        let mut modules: Vec<Module> = Vec::new();
        let mut unread = Vec::new();
        for m in mappings.iter().filter(|m| m.permissions.is_executable) {
            match bias(pid, m) {
                Ok(Some(bias)) => add(&mut modules, m, bias, &main),
                Ok(None) => {}
                Err(e) => unread.push((m.path.clone(), Arc::new(e))),
            }
        }
        modules.sort_by_key(|m| (m.kind != ModuleKind::MainExecutable, m.exec[0].range.start));
        Ok(Process { pid, mappings, modules, unread })
    }

    /// The program that was executed.
    pub fn main_executable(&self) -> Option<&Module> {
        self.modules.iter().find(|m| m.kind == ModuleKind::MainExecutable)
    }

    /// The module that an address lies in.
    pub fn module_at(&self, addr: Addr) -> Option<&Module> {
        self.modules.iter().find(|m| m.contains(addr))
    }
}

/// The file that the process was started from.
struct MainFile {
    path: Option<PathBuf>,
    id: Option<FileId>,
}

impl MainFile {
    fn of(pid: u32) -> MainFile {
        let link = super::proc_dir(pid).join("exe");
        let id = std::fs::metadata(&link).ok().map(|m| open::file_id(&m));
        let shown = std::fs::read_link(&link).ok();
        let path = shown.map(|p| match p.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
            Some(bare) => PathBuf::from(bare),
            None => p,
        });
        MainFile { path, id }
    }

    fn is(&self, m: &Mapping) -> bool {
        // An overlay file system may show one inode here and another there, but the same path.
        m.file.is_some() && (m.file == self.id || self.path.as_deref() == Some(m.path.as_path()))
    }
}

fn add(modules: &mut Vec<Module>, m: &Mapping, bias: Bias, main: &MainFile) {
    let exec = ExecMapping { range: m.range.clone(), offset: m.offset };
    let same = |o: &&mut Module| o.file == m.file && o.bias == bias && o.path == m.path;
    if let Some(module) = modules.iter_mut().find(same) {
        module.exec.push(exec);
        return;
    }
    let kind = if m.is_vdso() {
        ModuleKind::Vdso
    } else if main.is(m) {
        ModuleKind::MainExecutable
    } else {
        ModuleKind::Library
    };
    modules.push(Module {
        path: m.path.clone(),
        file: m.file,
        is_deleted: m.is_deleted,
        kind,
        bias,
        exec: vec![exec],
        mapping: m.clone(),
    });
}

/// What was added to the addresses of the image behind `m`; `None` if there is no image behind it.
fn bias(pid: u32, m: &Mapping) -> Result<Option<Bias>, ImageError> {
    if m.is_vdso() {
        return Ok(Some(Bias(m.range.start.0)));
    }
    if m.file.is_none() {
        return Ok(None);
    }
    let (file, _) = open::open(pid, m)?;
    let head = head_bytes(&file).map_err(|e| ImageError::io(&m.path, e))?;
    bias_by_headers(&head, m).map(Some).ok_or_else(|| not_elf(&m.path))
}

fn not_elf(path: &Path) -> ImageError {
    ImageError::NotElf { path: path.to_owned() }
}

/// The first page, where the program headers are in every file that a linker made.
fn head_bytes(file: &std::fs::File) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut head = Vec::with_capacity(4096);
    file.take(4096).read_to_end(&mut head)?;
    Ok(head)
}

fn bias_by_headers(head: &[u8], m: &Mapping) -> Option<Bias> {
    /// The smallest and the largest page of the machines we know.
    const PAGE_BYTES: (u64, u64) = (4 << 10, 64 << 10);
    let header = elf::FileHeader64::<LE>::parse(head).ok()?;
    let programs = header.program_headers(LE, head).ok()?;
    let loaded = programs.iter().filter(|p| p.p_type(LE) == elf::PT_LOAD);
    let executable = loaded.filter(|p| p.p_flags(LE).contains(elf::PF_X));
    let segment = executable.into_iter().find(|p| {
        let page = p.p_align(LE).clamp(PAGE_BYTES.0, PAGE_BYTES.1);
        let start = p.p_offset(LE) & !(page.next_power_of_two() - 1);
        let end = p.p_offset(LE).saturating_add(p.p_filesz(LE));
        (start..end).contains(&m.offset.0)
    })?;
    let image = segment.p_vaddr(LE).wrapping_add(m.offset.0).wrapping_sub(segment.p_offset(LE));
    Some(Bias::between(m.range.start, ImageAddr(image)))
}
