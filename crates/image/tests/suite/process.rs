//! Live processes: where their modules are, whatever happened to the files.

use std::fs;

use image::lookup::{LookupError, find_file, find_module, find_modules};
use image::select::chosen_implementation;
use image::spec::Library;
use image::{Addr, ElfImage, ImageError, ModuleKind, Process};

use crate::programs::{self, Running};

fn named(name: &str) -> Library {
    Library::Named(name.to_owned())
}

fn addr_of(process: &Process, library: &Library, function: &str) -> Addr {
    let module = find_module(library, process).unwrap();
    let image = module.open(process.pid).unwrap();
    let f = image.functions().iter().find(|f| f.names.iter().any(|n| &*n.text == function));
    module.addr(f.unwrap_or_else(|| panic!("{function}")).addr)
}

#[test]
fn functions_are_where_the_process_itself_sees_them() {
    let programs =
        [programs::sample(), programs::sample_fixed(), programs::sample_static(), programs::sample_musl()];
    for path in programs {
        let running = Running::start(&path, 5);
        let process = Process::read(running.pid()).unwrap();
        for name in ["handle_one", "classify"] {
            let addr = addr_of(&process, &Library::Main, name);
            assert_eq!(addr.0, running.printed[name], "{path:?} {name}");
            assert_eq!(process.module_at(addr).unwrap().kind, ModuleKind::MainExecutable);
        }
        assert!(process.unread.is_empty(), "{:?}", process.unread);
    }
    let running = Running::start(&programs::sample(), 5);
    let process = Process::read(running.pid()).unwrap();
    assert_eq!(addr_of(&process, &named("libc"), "malloc").0, running.printed["malloc"]);
}

#[test]
fn a_library_answers_to_its_path_its_file_name_its_stem_and_its_soname() {
    let running = Running::start(&programs::sample(), 5);
    let process = Process::read(running.pid()).unwrap();
    let libc = find_module(&named("libc.so.6"), &process).unwrap();
    let path = libc.path.to_str().unwrap().to_owned();
    for name in ["libc", "libc.so", path.as_str()] {
        assert_eq!(find_module(&named(name), &process).unwrap(), libc, "{name}");
    }
    let loader = find_module(&named("ld-linux-x86-64"), &process).unwrap();
    assert_eq!(loader.kind, ModuleKind::Library);
    let main = process.main_executable().unwrap();
    assert_eq!(find_module(&Library::Main, &process).unwrap(), main);
    assert_eq!(find_module(&named("sample"), &process).unwrap(), main);
    assert!(process.modules.iter().any(|m| m.kind == ModuleKind::Vdso && m.file.is_none()));
}

#[test]
fn musl_is_the_c_library_of_programs_that_load_it() {
    let running = Running::start(&programs::sample_musl_dynamic(), 5);
    let process = Process::read(running.pid()).unwrap();
    assert_eq!(addr_of(&process, &named("libc"), "malloc").0, running.printed["malloc"]);
    assert_eq!(addr_of(&process, &Library::Main, "classify").0, running.printed["classify"]);
}

#[test]
fn a_program_answers_to_the_name_that_it_was_found_by() {
    // A link in PATH to a file of another name, as python3 is.
    let dir = programs::directory("linked");
    std::os::unix::fs::symlink(programs::sample(), dir.join("other-name")).unwrap();
    let running = Running::start(&dir.join("other-name"), 5);
    let process = Process::read(running.pid()).unwrap();
    let by_link = find_module(&named(dir.join("other-name").to_str().unwrap()), &process).unwrap();
    assert_eq!(by_link.kind, ModuleKind::MainExecutable);
    assert_eq!(by_link.path, programs::sample());
}

#[test]
fn a_library_that_is_not_mapped_is_answered_with_those_that_are() {
    let running = Running::start(&programs::sample(), 5);
    let process = Process::read(running.pid()).unwrap();
    let error = find_module(&named("libcc"), &process).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("libc.so.6"), "{message}");
    assert_eq!(error.better_spec("malloc").as_deref(), Some("u:libc.so.6:malloc"));
}

#[test]
fn a_static_program_is_said_to_hold_its_libraries() {
    for path in [programs::sample_static(), programs::sample_musl()] {
        let running = Running::start(&path, 5);
        let process = Process::read(running.pid()).unwrap();
        let error = find_module(&named("libc"), &process).unwrap_err();
        assert!(
            matches!(&error, LookupError::NotMapped { static_program: Some(p), .. } if *p == path),
            "{error:?}"
        );
        assert_eq!(error.better_spec("malloc"), Some(format!("u:{}:malloc", path.display())));
        assert!(error.to_string().contains("statically linked"));
        let error = find_module(&named("nginx"), &process).unwrap_err();
        assert!(!error.to_string().contains("statically linked"), "{error}");
    }
}

#[test]
fn a_file_that_is_loaded_twice_is_two_modules_of_one_file() {
    let running = Running::start(&programs::twice(), 1);
    let process = Process::read(running.pid()).unwrap();
    let copies = find_modules(&named("libc"), &process).unwrap();
    assert_eq!(copies.len(), 2);
    assert_ne!(copies[0].bias, copies[1].bias);
    let image = copies[0].open(process.pid).unwrap();
    let malloc = image.functions().iter().find(|f| f.name() == Some("malloc")).unwrap();
    assert!(copies.iter().any(|m| m.addr(malloc.addr).0 == running.printed["second"]));
}

#[test]
fn different_files_of_one_name_are_listed_and_not_guessed_between() {
    let dir = programs::directory("twins");
    let twins = ["one", "two"].map(|name| {
        fs::create_dir_all(dir.join(name)).unwrap();
        let path = dir.join(name).join("libtwin.so.1");
        let number = format!("-DTWIN={}", name.len() + usize::from(name == "two"));
        programs::tool(
            "gcc",
            &["-shared", "-fPIC", &number, &programs::source("twin.c"), "-o", path.to_str().unwrap()],
        );
        path
    });
    let running = Running::start_with(&programs::twice(), &[&twins[0], &twins[1]], 1);
    let process = Process::read(running.pid()).unwrap();
    for name in ["libtwin", "libtwin.so.1"] {
        match find_modules(&named(name), &process).unwrap_err() {
            LookupError::Ambiguous { candidates, .. } => {
                assert!(
                    candidates.len() == 2 && twins.iter().all(|t| candidates.contains(t)),
                    "{candidates:?}"
                );
            }
            other => panic!("{other}"),
        }
    }
    let one = find_module(&named(twins[0].to_str().unwrap()), &process).unwrap();
    assert_eq!(one.path, twins[0]);
}

#[test]
fn the_implementation_that_a_process_chose_for_an_ifunc_is_read_from_it() {
    for path in [programs::sample(), programs::sample_fixed(), programs::sample_static()] {
        let running = Running::start(&path, 5);
        let process = Process::read(running.pid()).unwrap();
        let main = process.main_executable().unwrap();
        let main_image = main.open(process.pid).unwrap();
        let libc = find_module(&named("libc"), &process).unwrap_or(main);
        let libc_image = libc.open(process.pid).unwrap();
        let is_memcpy =
            |n: &image::SymbolName| &*n.text == "memcpy" && n.version.as_ref().is_none_or(|v| v.is_default);
        let ifuncs = libc_image.functions().iter().filter(|f| f.kind == image::FunctionKind::Ifunc);
        let memcpy = ifuncs.into_iter().find(|f| f.names.iter().any(is_memcpy)).unwrap();
        let chosen =
            chosen_implementation(memcpy, (libc, &libc_image), &[(main, &main_image)], |a| running.word(a));
        // A slot that still leads to the resolver or to a stub tells nothing.
        let mut unfilled = vec![memcpy.addr];
        unfilled.extend(libc_image.plt_ranges().first().map(|p| p.start));
        for to in unfilled {
            let read = |_| Some(libc.addr(to).0);
            assert_eq!(
                chosen_implementation(memcpy, (libc, &libc_image), &[(main, &main_image)], read),
                None
            );
        }
        let chosen = libc.addr(chosen.unwrap_or_else(|| panic!("{path:?}: no slot tells")));
        // A program at fixed addresses may print its own stub for memcpy.
        let printed = Addr(running.printed["memcpy"]);
        let is_stub = main_image.plt_ranges().iter().any(|p| p.contains(&main.image_addr(printed)));
        assert!(chosen == printed || is_stub, "{path:?} {chosen} {printed}");
    }
}

#[test]
fn a_replaced_file_is_noticed() {
    let path = programs::directory("replaced").join("program (deleted)");
    fs::copy(programs::sample(), &path).unwrap();
    let running = Running::start(&path, 5);
    let build_id = ElfImage::open(&path).unwrap().build_id().unwrap().to_vec();
    fs::remove_file(&path).unwrap();
    fs::copy(programs::sample_fixed(), &path).unwrap();
    let process = Process::read(running.pid()).unwrap();
    // The link in /proc/PID leads to the old file.
    let main = process.main_executable().unwrap();
    assert!(main.is_deleted && main.path == path);
    let image = main.open(process.pid).unwrap();
    assert_eq!(image.build_id().unwrap(), build_id);
    assert_eq!(main.addr(function(&image, "classify")).0, running.printed["classify"]);
}

#[test]
fn a_replaced_library_is_read_or_reported() {
    let dir = programs::directory("replaced library");
    let path = dir.join("libreplaced.so.1");
    let source = programs::source("twin.c");
    let build = |number| {
        programs::tool("gcc", &["-shared", "-fPIC", number, &source, "-o", path.to_str().unwrap()]);
        ElfImage::open(&path).unwrap().build_id().unwrap().to_vec()
    };
    let old = build("-DTWIN=1");
    let running = Running::start_with(&programs::twice(), &[&path], 1);
    fs::remove_file(&path).unwrap();
    let new = build("-DTWIN=2");
    assert_ne!(old, new);
    let process = Process::read(running.pid()).unwrap();
    match find_module(&named("libreplaced"), &process) {
        // With the right to follow /proc/PID/map_files.
        Ok(module) => assert_eq!(module.open(process.pid).unwrap().build_id().unwrap(), old),
        // Without it.
        Err(LookupError::Unread { cause, .. }) => assert!(matches!(*cause, ImageError::Replaced { .. })),
        Err(other) => panic!("{other}"),
    }
}

fn function(image: &ElfImage, name: &str) -> image::ImageAddr {
    image.functions().iter().find(|f| f.name() == Some(name)).unwrap().addr
}

#[test]
fn paths_with_spaces_and_newlines_are_followed() {
    let path = programs::directory("odd names").join("a b\nc");
    fs::copy(programs::sample(), &path).unwrap();
    let running = Running::start(&path, 5);
    let process = Process::read(running.pid()).unwrap();
    let main = process.main_executable().unwrap();
    assert_eq!(main.path, path);
    assert!(main.open(process.pid).is_ok());
}

#[test]
fn a_process_that_is_gone_is_an_error() {
    let pid = Running::start(&programs::sample(), 5).pid();
    assert!(Process::read(pid).is_err());
}

#[test]
fn libraries_are_found_without_a_process() {
    for name in ["libc", "libc.so.6", "libstdc++", "libcrypto", "libm.so"] {
        let path = find_file(&named(name)).unwrap();
        let stem = name.split(".so").next().unwrap();
        assert!(path.file_name().unwrap().to_str().unwrap().starts_with(stem), "{name} {path:?}");
        assert!(ElfImage::open(&path).unwrap().soname().unwrap().starts_with(stem));
    }
    assert_eq!(find_file(&named("ls")).unwrap().file_name().unwrap(), "ls");
    let error = find_file(&named("libstdcc++")).unwrap_err();
    assert!(error.to_string().contains("libstdc++"), "{error}");
    assert!(matches!(find_file(&Library::Main), Err(LookupError::NoProcess)));
    assert!(matches!(find_file(&named("./absent/file")), Err(LookupError::NotFound { .. })));
}
