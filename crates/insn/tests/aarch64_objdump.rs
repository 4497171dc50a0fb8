//! A64 decoding against a second disassembler, binutils' objdump: over the C library of the cross compiler, and over
//! random words. Everything that one of the two calls relative, the other must, with the same target.
//!
//! Needs `aarch64-linux-gnu-objdump` and the library; says that it skips where they are missing.
//! `NANOPROBE_SEED` repeats a run. Runs on the host: under emulation it would show the same, more slowly.
#![cfg(not(target_arch = "aarch64"))]

#[path = "differential/seed.rs"]
mod seed;

use std::process::Command;

use insn::aarch64::{Auth, By, Literal, Relative, Verdict, decode, verdict, verdict_at};
use insn::{Code, Forbidden};
use seed::Seed;

const OBJDUMP: &str = "aarch64-linux-gnu-objdump";
const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";

/// One line of objdump's.
struct Line<'a> {
    addr: u64,
    word: u32,
    mnemonic: &'a str,
    operands: &'a str,
}

fn objdump(args: &[&str]) -> Option<String> {
    let output = Command::new(OBJDUMP).args(["-w", "-z"]).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter_map(|line| {
        let (addr, rest) = line.split_once(":\t")?;
        let addr = u64::from_str_radix(addr.trim(), 16).ok()?;
        let mut columns = rest.split('\t');
        let word = u32::from_str_radix(columns.next()?.trim(), 16).ok()?;
        let mnemonic = columns.next()?.trim();
        let operands = columns.next().unwrap_or_default();
        let operands = operands.split("//").next().unwrap_or_default().trim();
        Some(Line { addr, word, mnemonic, operands })
    })
}

impl Line<'_> {
    /// objdump knows the word as an instruction. It names unallocated system instructions as registers `s0_...`.
    fn is_known(&self) -> bool {
        let is_unallocated = self.operands.split(", ").any(|part| part.starts_with("s0_"));
        !matches!(self.mnemonic, ".inst" | ".word" | "udf") && !is_unallocated
    }

    /// The target of a relative instruction, as objdump prints it.
    fn target(&self) -> Option<u64> {
        let is_relative = match self.mnemonic {
            "adr" | "adrp" | "b" | "bl" | "cbz" | "cbnz" | "tbz" | "tbnz" => true,
            "ldr" | "ldrsw" | "prfm" => !self.operands.contains('['),
            other => other.starts_with("b.") || other.starts_with("bc."),
        };
        if !is_relative || self.operands.contains('[') {
            return None;
        }
        let last = self.operands.rsplit(", ").next()?.split_whitespace().next()?;
        u64::from_str_radix(last.trim_start_matches("0x"), 16).ok()
    }

    /// Mnemonics for what we decoded.
    fn is_named(&self, relative: &Relative) -> bool {
        let name = self.mnemonic;
        match *relative {
            Relative::Adr { .. } => name == "adr",
            Relative::Adrp { .. } => name == "adrp",
            Relative::Jump { .. } => name == "b",
            Relative::Call { .. } => name == "bl",
            Relative::JumpIf { is_consistent, .. } => {
                name.starts_with(if is_consistent { "bc." } else { "b." })
            }
            Relative::JumpZero { when_zero, .. } => name == if when_zero { "cbz" } else { "cbnz" },
            Relative::JumpBit { when_set, bit, .. } => {
                let bit = format!("#{bit},");
                name == if when_set { "tbnz" } else { "tbz" } && self.operands.contains(&bit)
            }
            Relative::Load { rt, literal, .. } => self.loads(rt, literal),
            Relative::Register { by, rn, auth } => self.goes(by, rn, auth),
        }
    }

    fn loads(&self, rt: u8, literal: Literal) -> bool {
        let (name, letter) = match literal {
            Literal::Prefetch => return self.mnemonic == "prfm",
            Literal::Word => ("ldr", 'w'),
            Literal::Double => ("ldr", 'x'),
            Literal::SignedWord => ("ldrsw", 'x'),
            Literal::Vector { len_bytes: 4 } => ("ldr", 's'),
            Literal::Vector { len_bytes: 8 } => ("ldr", 'd'),
            Literal::Vector { .. } => ("ldr", 'q'),
        };
        let is_zero = rt == 31 && matches!(letter, 'w' | 'x');
        let register = if is_zero { format!("{letter}zr,") } else { format!("{letter}{rt},") };
        self.mnemonic == name && self.operands.starts_with(&register)
    }

    fn goes(&self, by: By, rn: u8, auth: Auth) -> bool {
        let stem = match by {
            By::Jump => "br",
            By::Call => "blr",
            By::Return => "ret",
        };
        let number = |rn: u8| if rn == 31 { "xzr".to_owned() } else { format!("x{rn}") };
        match auth {
            Auth::None if by == By::Return && rn == 30 => self.mnemonic == "ret" && self.operands.is_empty(),
            Auth::None => self.mnemonic == stem && self.operands == number(rn),
            Auth::Modifier(31) if by == By::Return => matches!(self.mnemonic, "retaa" | "retab"),
            Auth::Zero => self.names_auth(stem, "z") && self.operands == number(rn),
            Auth::Modifier(rm) => {
                let modifier = if rm == 31 { "sp".to_owned() } else { number(rm) };
                self.names_auth(stem, "") && self.operands == format!("{}, {modifier}", number(rn))
            }
        }
    }

    fn names_auth(&self, stem: &str, suffix: &str) -> bool {
        ["aa", "ab"].iter().any(|key| self.mnemonic == format!("{stem}{key}{suffix}"))
    }

    /// Control goes by register.
    fn is_register_branch(&self) -> bool {
        ["br", "blr", "ret"].iter().any(|stem| {
            self.mnemonic
                .strip_prefix(stem)
                .is_some_and(|rest| matches!(rest, "" | "aa" | "ab" | "aaz" | "abz"))
        })
    }

    /// What the verdict has to be, from the mnemonic; `None` for what must be accepted.
    fn refusal(&self) -> Option<&'static [Forbidden]> {
        use Forbidden::{
            CallOfLinkRegister, Exception, Exclusive, Hint, MemoryCopy, Privileged, SystemRegister, Trap,
        };
        let name = self.mnemonic;
        let is_size = |rest: &str| matches!(rest, "" | "b" | "h");
        let is_one = |stem: &str| name.strip_prefix(stem).is_some_and(is_size);
        Some(match name {
            "svc" | "hvc" | "smc" | "hlt" | "dcps1" | "dcps2" | "dcps3" | "tcancel" => &[Exception],
            "brk" => &[Trap],
            "eret" | "eretaa" | "eretab" | "drps" => &[Privileged],
            "msr" | "cfinv" | "xaflag" | "axflag" | "smstart" | "smstop" => &[SystemRegister],
            "mrs" if self.operands.ends_with("daif") => &[SystemRegister],
            "yield" | "wfe" | "wfi" | "sev" | "sevl" | "dgh" | "esb" | "tsb" | "csdb" | "hint" | "psb"
            | "clrbhb" | "clearbhb" | "chkfeat" => &[Hint],
            _ if self.word & 0xffff_f01f == 0xd503_201f && name.starts_with("aut") => &[Hint],
            "blraa" | "blrab" | "blraaz" | "blrabz"
                if self.operands.split(", ").any(|part| part == "x30") =>
            {
                &[CallOfLinkRegister]
            }
            _ if ["ldxr", "ldaxr", "stxr", "stlxr"].iter().any(|stem| is_one(stem)) => &[Exclusive],
            "ldxp" | "ldaxp" | "stxp" | "stlxp" => &[Exclusive],
            _ if name.starts_with("cpy") && self.word & 0x3b20_0c00 == 0x1900_0400 => &[MemoryCopy],
            _ if name.starts_with("set") && self.word & 0x3b20_0c00 == 0x1900_0400 => &[MemoryCopy],
            // Transactions, which no processor has; they are in no table of the kernel.
            "tstart" | "tcommit" | "ttest" => &[Forbidden::Undecodable],
            _ => return None,
        })
    }
}

#[derive(Debug, Default)]
struct Tally {
    words: u64,
    targets: u64,
    by_register: u64,
    refused: u64,
    wrong: Vec<String>,
}

fn compare(text: &str, tally: &mut Tally) {
    for line in lines(text) {
        tally.words += 1;
        let ours = decode(line.word, line.addr);
        let complain = |tally: &mut Tally, what: &str| {
            let Line { addr, word, mnemonic, operands } = &line;
            tally
                .wrong
                .push(format!("{addr:#x}: {word:08x} {mnemonic} {operands}: {what}, we have {ours:x?}"));
        };
        let theirs = line.target();
        if ours.and_then(|relative| relative.target()) != theirs {
            complain(tally, "target");
        }
        if line.is_known() && line.is_register_branch() != matches!(ours, Some(Relative::Register { .. })) {
            complain(tally, "branch by register");
        }
        if ours.is_some_and(|relative| !line.is_named(&relative)) {
            complain(tally, "operands");
        }
        tally.targets += u64::from(theirs.is_some());
        tally.by_register += u64::from(line.is_register_branch());
        if !line.is_known() {
            continue;
        }
        let verdict = verdict(line.word);
        let good = match (line.refusal(), verdict) {
            (Some(reasons), Verdict::Refused(what)) => reasons.contains(&what),
            (None, Verdict::Refused(_)) => false,
            (reasons, _) => reasons.is_none(),
        };
        tally.refused += u64::from(matches!(verdict, Verdict::Refused(_)));
        if !good {
            complain(tally, &format!("verdict {verdict:?}"));
        }
    }
}

fn assert_equal(what: &str, tally: &Tally) {
    println!(
        "{what}: {} words, {} with a target, {} branches by register, {} refused, {} differ",
        tally.words,
        tally.targets,
        tally.by_register,
        tally.refused,
        tally.wrong.len()
    );
    assert!(tally.wrong.is_empty(), "{:#?}", &tally.wrong[..tally.wrong.len().min(20)]);
}

#[test]
fn every_relative_instruction_of_libc_is_found_with_the_target_that_objdump_prints() {
    let Some(text) = objdump(&["-d", LIBC]) else {
        println!("skipped: no {OBJDUMP} or no {LIBC}");
        return;
    };
    let mut tally = Tally::default();
    compare(&text, &mut tally);
    assert_equal("libc", &tally);
    assert!(tally.words > 200_000 && tally.targets > 50_000 && tally.by_register > 2_000, "{tally:?}");
}

#[test]
fn hardly_any_site_of_libc_is_refused_and_those_between_exclusives_are() {
    let Some(text) = objdump(&["-d", "-j", ".text", LIBC]) else {
        println!("skipped: no {OBJDUMP} or no {LIBC}");
        return;
    };
    let lines: Vec<_> = lines(&text).collect();
    let bytes: Vec<u8> = lines.iter().flat_map(|line| line.word.to_le_bytes()).collect();
    let code = Code { base: lines[0].addr, bytes: &bytes };
    assert_eq!(code.range().end, lines.last().unwrap().addr + 4, "the section has no hole");
    let (mut refused, mut inside, mut exclusives, mut emulated, mut rewritten) = (0, 0, 0, 0, 0);
    for line in &lines {
        let verdict = verdict_at(&code, line.addr);
        refused += u64::from(matches!(verdict, Verdict::Refused(_)));
        emulated += u64::from(verdict == Verdict::Emulated);
        rewritten += u64::from(verdict == Verdict::Rewritten);
        exclusives += u64::from(verdict == Verdict::Refused(Forbidden::Exclusive));
        inside += u64::from(verdict == Verdict::Refused(Forbidden::InExclusive));
    }
    let share = 100.0 * refused as f64 / lines.len() as f64;
    println!(
        "{} sites: {emulated} emulated, {rewritten} written anew, {refused} ({share:.3} %) refused, of which \
         {exclusives} exclusives, {inside} inside pairs",
        lines.len()
    );
    // Each pair has at least its two instructions; the library's helpers for atomics hold some.
    assert!(exclusives > 10 && inside > 0 && inside < 4 * exclusives);
    assert!(share < 1.0);
}

/// Words whose upper bits are those of the groups that matter, half of the time.
fn random_words(seed: &mut Seed, count: usize) -> Vec<u8> {
    const GROUPS: [(u32, u32); 14] = [
        (0x1f00_0000, 0x1000_0000),
        (0x3b00_0000, 0x1800_0000),
        (0x7c00_0000, 0x1400_0000),
        (0xff00_0000, 0x5400_0000),
        (0x7e00_0000, 0x3400_0000),
        (0x7e00_0000, 0x3600_0000),
        (0xff00_0000, 0xd600_0000),
        (0xfe1f_f800, 0xd61f_0800),
        (0xfe1f_f81f, 0xd61f_0000),
        (0xff00_0000, 0xd400_0000),
        (0xffc0_0000, 0xd500_0000),
        (0xffff_f01f, 0xd503_201f),
        (0x3f80_0000, 0x0800_0000),
        (0x3b20_0c00, 0x1900_0400),
    ];
    (0..count)
        .flat_map(|_| {
            let word = seed.next() as u32;
            let (mask, value) = GROUPS[seed.below(GROUPS.len() as u64) as usize];
            let word = if seed.below(2) == 0 { word } else { word & !mask | value };
            word.to_le_bytes()
        })
        .collect()
}

#[test]
fn random_words_are_relative_for_both_or_for_neither() {
    let mut seed = Seed::from_env("random words");
    let path = std::env::temp_dir().join(format!("nanoprobe-a64-{}.bin", std::process::id()));
    std::fs::write(&path, random_words(&mut seed, 300_000)).unwrap();
    let vma = format!("--adjust-vma={:#x}", 0x5555_0000_0000u64);
    let text = objdump(&["-D", "-b", "binary", "-m", "aarch64", &vma, path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    let Some(text) = text else {
        println!("skipped: no {OBJDUMP}");
        return;
    };
    let mut tally = Tally::default();
    compare(&text, &mut tally);
    assert_equal("random", &tally);
    assert!(tally.words > 290_000 && tally.targets > 50_000 && tally.by_register > 100, "{tally:?}");
}
