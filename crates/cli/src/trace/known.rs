//! What well-known functions of the C library return and take (table).
//!
//! For:     `trace`, where there is no debug information, as of most distributions' libraries.
//! State:   none.
//! Context: control.
//! Keeps:   K1 only names of the C library's own file are known.
//! Checked: tests of `trace`.
//! Source:  POSIX and the manual pages; widths are those of x86-64.

use image::{Kind, Signature};

/// Name, arguments, result: i and w are 32 bits with and without a sign, l and u 64, p an address, v nothing.
const KNOWN: &[(&str, &str, char)] = &[
    ("accept", "ipp", 'i'),
    ("accept4", "ippi", 'i'),
    ("access", "pi", 'i'),
    ("atoi", "p", 'i'),
    ("atol", "p", 'l'),
    ("bind", "ipw", 'i'),
    ("calloc", "uu", 'p'),
    ("chdir", "p", 'i'),
    ("chmod", "pw", 'i'),
    ("clock_gettime", "ip", 'i'),
    ("clock_nanosleep", "iipp", 'i'),
    ("close", "i", 'i'),
    ("connect", "ipw", 'i'),
    ("dup", "i", 'i'),
    ("dup2", "ii", 'i'),
    ("dup3", "iii", 'i'),
    ("epoll_create1", "i", 'i'),
    ("epoll_ctl", "iiip", 'i'),
    ("epoll_wait", "ipii", 'i'),
    ("execve", "ppp", 'i'),
    ("fchmod", "iw", 'i'),
    ("fclose", "p", 'i'),
    ("fcntl", "iil", 'i'),
    ("fcntl64", "iil", 'i'),
    ("fdatasync", "i", 'i'),
    ("feof", "p", 'i'),
    ("ferror", "p", 'i'),
    ("fflush", "p", 'i'),
    ("fgetc", "p", 'i'),
    ("fgets", "pip", 'p'),
    ("fopen", "pp", 'p'),
    ("fopen64", "pp", 'p'),
    ("fork", "-", 'i'),
    ("fputc", "ip", 'i'),
    ("fputs", "pp", 'i'),
    ("fread", "puup", 'u'),
    ("free", "p", 'v'),
    ("fseek", "pli", 'i'),
    ("fstat", "ip", 'i'),
    ("fsync", "i", 'i'),
    ("ftell", "p", 'l'),
    ("ftruncate", "il", 'i'),
    ("fwrite", "puup", 'u'),
    ("getaddrinfo", "pppp", 'i'),
    ("getc", "p", 'i'),
    ("getcwd", "pu", 'p'),
    ("getenv", "p", 'p'),
    ("getpid", "-", 'i'),
    ("getppid", "-", 'i'),
    ("gettimeofday", "pp", 'i'),
    ("getuid", "-", 'w'),
    ("inotify_add_watch", "ipu", 'i'),
    ("inotify_init1", "i", 'i'),
    ("ioctl", "iul", 'i'),
    ("isatty", "i", 'i'),
    ("kill", "ii", 'i'),
    ("link", "pp", 'i'),
    ("listen", "ii", 'i'),
    ("lseek", "ili", 'l'),
    ("lseek64", "ili", 'l'),
    ("lstat", "pp", 'i'),
    ("madvise", "pui", 'i'),
    ("malloc", "u", 'p'),
    ("memcmp", "ppu", 'i'),
    ("memcpy", "ppu", 'p'),
    ("memmove", "ppu", 'p'),
    ("memset", "piu", 'p'),
    ("mkdir", "pw", 'i'),
    ("mmap", "puiiil", 'p'),
    ("mprotect", "pui", 'i'),
    ("munmap", "pu", 'i'),
    ("nanosleep", "pp", 'i'),
    ("open", "piw", 'i'),
    ("open64", "piw", 'i'),
    ("openat", "ipiw", 'i'),
    ("openat64", "ipiw", 'i'),
    ("pipe", "p", 'i'),
    ("pipe2", "pi", 'i'),
    ("poll", "pui", 'i'),
    ("posix_memalign", "puu", 'i'),
    ("ppoll", "pupp", 'i'),
    ("pread", "ipul", 'l'),
    ("pread64", "ipul", 'l'),
    ("pthread_cond_signal", "p", 'i'),
    ("pthread_cond_wait", "pp", 'i'),
    ("pthread_create", "pppp", 'i'),
    ("pthread_join", "up", 'i'),
    ("pthread_mutex_lock", "p", 'i'),
    ("pthread_mutex_trylock", "p", 'i'),
    ("pthread_mutex_unlock", "p", 'i'),
    ("putc", "ip", 'i'),
    ("putchar", "i", 'i'),
    ("puts", "p", 'i'),
    ("pwrite", "ipul", 'l'),
    ("pwrite64", "ipul", 'l'),
    ("raise", "i", 'i'),
    ("rand", "-", 'i'),
    ("read", "ipu", 'l'),
    ("readdir", "p", 'p'),
    ("readlink", "ppu", 'l'),
    ("readv", "ipi", 'l'),
    ("realloc", "pu", 'p'),
    ("recv", "ipui", 'l'),
    ("recvfrom", "ipuipp", 'l'),
    ("recvmsg", "ipi", 'l'),
    ("remove", "p", 'i'),
    ("rename", "pp", 'i'),
    ("rmdir", "p", 'i'),
    ("sched_yield", "-", 'i'),
    ("select", "ipppp", 'i'),
    ("sem_post", "p", 'i'),
    ("sem_wait", "p", 'i'),
    ("send", "ipui", 'l'),
    ("sendmsg", "ipi", 'l'),
    ("sendto", "ipuipw", 'l'),
    ("setenv", "ppi", 'i'),
    ("setsockopt", "iiipw", 'i'),
    ("shutdown", "ii", 'i'),
    ("sigaction", "ipp", 'i'),
    ("sleep", "w", 'w'),
    ("socket", "iii", 'i'),
    ("socketpair", "iiip", 'i'),
    ("stat", "pp", 'i'),
    ("strcasecmp", "pp", 'i'),
    ("strcmp", "pp", 'i'),
    ("strdup", "p", 'p'),
    ("strlen", "p", 'u'),
    ("strncmp", "ppu", 'i'),
    ("strtol", "ppi", 'l'),
    ("strtoul", "ppi", 'u'),
    ("symlink", "pp", 'i'),
    ("system", "p", 'i'),
    ("truncate", "pl", 'i'),
    ("unlink", "p", 'i'),
    ("unlinkat", "ipi", 'i'),
    ("usleep", "w", 'i'),
    ("vfork", "-", 'i'),
    ("wait", "p", 'i'),
    ("waitpid", "ipi", 'i'),
    ("write", "ipu", 'l'),
    ("writev", "ipi", 'l'),
];

/// The signature of a function of a file, if that is a C library and the function well known.
pub fn signature(path: &str, name: &str) -> Option<Signature> {
    let file = path.rsplit('/').next().unwrap_or_default();
    let is_libc = ["libc.so", "libc-2", "libc.musl", "ld-musl"].iter().any(|stem| file.starts_with(stem));
    let at = KNOWN.binary_search_by_key(&name, |(known, ..)| *known).ok().filter(|_| is_libc)?;
    let (_, arguments, returns) = KNOWN[at];
    Some(Signature {
        returns: kind(returns),
        arguments: arguments.chars().filter(|c| *c != '-').map(kind).collect(),
    })
}

fn kind(letter: char) -> Kind {
    match letter {
        'i' => Kind::Signed(4),
        'w' => Kind::Unsigned(4),
        'l' => Kind::Signed(8),
        'u' => Kind::Unsigned(8),
        'p' => Kind::Pointer,
        _ => Kind::Void,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_letters_are_known() {
        assert!(KNOWN.is_sorted_by_key(|(name, ..)| *name), "binary search needs it");
        for (name, arguments, returns) in KNOWN {
            assert!("iwlupv".contains(*returns), "{name}");
            assert!(arguments.chars().all(|c| "iwlup-".contains(c)), "{name}");
        }
    }
}
