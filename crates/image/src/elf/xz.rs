//! The xz container: what `.gnu_debugdata` is compressed with.
//!
//! For:     `debug.rs`.
//! State:   none.
//! Context: control.
//! Keeps:   X1 no more memory than the limit is taken, whatever the file promises: the plain bytes are their own
//!          dictionary, and each is counted before it is written.
//!          X2 plain bytes are returned only if the container's own checksum of them is right.
//! Checked: tests below.
//! Source:  the .xz file format 1.2.0. Departs: one stream, one filter (LZMA2), checks CRC32, CRC64 and none; of the
//!          index only its place is checked.

use super::lzma::{Lzma2, Wrong};

/// Why compressed symbols are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotRead {
    /// They are no xz stream of the kind that is read here, or broken.
    Broken,
    /// Plain, they are larger than this many bytes.
    TooLarge(usize),
}

const MAGIC: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const STREAM_HEADER_BYTES: usize = 12;
const LZMA2: u64 = 0x21;

/// The plain bytes of an xz stream, `limit` at most.
pub(super) fn decompress(data: &[u8], limit: usize) -> Result<Vec<u8>, NotRead> {
    let check = Check::of(data).ok_or(NotRead::Broken)?;
    let mut plain = Vec::new();
    let mut at = STREAM_HEADER_BYTES;
    // A size of zero begins the index.
    while *data.get(at).ok_or(NotRead::Broken)? != 0 {
        let start = plain.len();
        let body = block_header(data, at).ok_or(NotRead::Broken)?;
        let mut decoder = Lzma2::new(data.get(body..).unwrap_or_default(), start, limit);
        let used = decoder.run(&mut plain).map_err(|wrong| match wrong {
            Wrong::Data => NotRead::Broken,
            Wrong::Limit => NotRead::TooLarge(limit),
        })?;
        let (last, end) = (body + used, (body + used).next_multiple_of(4));
        let is_padded = data.get(last..end).is_some_and(|padding| padding.iter().all(|byte| *byte == 0));
        if !is_padded {
            return Err(NotRead::Broken);
        }
        at = check.confirms(data, end, &plain[start..]).ok_or(NotRead::Broken)?;
    }
    if index(data) == Some(at) { Ok(plain) } else { Err(NotRead::Broken) }
}

/// Where the index begins as the footer says.
fn index(data: &[u8]) -> Option<usize> {
    const FOOTER_BYTES: usize = 12;
    let footer = data.len().checked_sub(FOOTER_BYTES)?;
    let words = u32::from_le_bytes(data[footer + 4..footer + 8].try_into().ok()?) as usize;
    data.ends_with(b"YZ").then(|| footer.checked_sub((words + 1).checked_mul(4)?))?
}

/// Where the data of the block whose header is at `at` begins.
fn block_header(data: &[u8], at: usize) -> Option<usize> {
    let len = (usize::from(*data.get(at)?) + 1) * 4;
    let header = data.get(at..at + len)?;
    let (fields, sum) = header.split_at(len - 4);
    (CRC32.of(fields) as u32 == u32::from_le_bytes(sum.try_into().ok()?)).then_some(())?;
    let flags = fields[1];
    (flags & 0x3f == 0).then_some(())?;
    let mut rest = &fields[2..];
    for is_there in [flags & 0x40, flags & 0x80] {
        if is_there != 0 {
            number(&mut rest)?;
        }
    }
    let is_plain_lzma2 = number(&mut rest)? == LZMA2 && number(&mut rest)? == 1;
    is_plain_lzma2.then_some(at + len)
}

/// A number of seven bits a byte.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// How a stream's blocks are summed.
#[derive(Clone, Copy)]
enum Check {
    None,
    Crc32,
    Crc64,
}

impl Check {
    fn of(data: &[u8]) -> Option<Check> {
        let header = data.get(..STREAM_HEADER_BYTES)?;
        let sum = u32::from_le_bytes(header[8..].try_into().ok()?);
        (header.starts_with(MAGIC) && header[6] == 0 && CRC32.of(&header[6..8]) as u32 == sum)
            .then_some(())?;
        match header[7] {
            0 => Some(Check::None),
            1 => Some(Check::Crc32),
            4 => Some(Check::Crc64),
            _ => None,
        }
    }

    /// Where the next block begins, if the sum at `at` is that of `plain`.
    fn confirms(self, data: &[u8], at: usize, plain: &[u8]) -> Option<usize> {
        let (is_right, len) = match self {
            Check::None => (true, 0),
            Check::Crc32 => (data.get(at..at + 4)? == (CRC32.of(plain) as u32).to_le_bytes(), 4),
            Check::Crc64 => (data.get(at..at + 8)? == CRC64.of(plain).to_le_bytes(), 8),
        };
        is_right.then_some(at + len)
    }
}

/// A reflected cyclic redundancy check of up to 64 bits.
struct Crc {
    table: [u64; 256],
    all_ones: u64,
}

static CRC32: Crc = Crc::new(0xedb8_8320, 0xffff_ffff);
static CRC64: Crc = Crc::new(0xc96c_5795_d787_0f42, u64::MAX);

impl Crc {
    const fn new(polynomial: u64, all_ones: u64) -> Crc {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut sum = byte as u64;
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ polynomial } else { sum >> 1 };
                bit += 1;
            }
            table[byte] = sum;
            byte += 1;
        }
        Crc { table, all_ones }
    }

    fn of(&self, bytes: &[u8]) -> u64 {
        let sum =
            bytes.iter().fold(self.all_ones, |sum, byte| sum >> 8 ^ self.table[(sum as u8 ^ byte) as usize]);
        sum ^ self.all_ones
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// By xz(1); `None` where there is none.
    fn compressed(plain: &[u8], options: &[&str]) -> Option<Vec<u8>> {
        let mut child = Command::new("xz")
            .args(["-c", "-T1"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut input = child.stdin.take()?;
        let plain = plain.to_vec();
        let feeder = std::thread::spawn(move || input.write_all(&plain));
        let output = child.wait_with_output().ok()?;
        feeder.join().ok()?.ok()?;
        Some(output.stdout)
    }

    #[test]
    fn what_xz_compresses_is_read_whole() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let plains = [
            &own[..own.len().min(1 << 20)],
            b"",
            b"a",
            &[7; 300_000],
            &b"nanoprobe symbols, symbols of nanoprobe. ".repeat(9000),
        ];
        let kinds: [&[&str]; 6] = [
            &["-6"],
            &["-0", "--check=crc32"],
            &["-3e", "--check=none"],
            &["--block-size=100000"],
            &["--lzma2=lc=0,lp=4,pb=4"],
            &["--lzma2=lc=4,lp=0,pb=0,dict=4096"],
        ];
        for plain in plains {
            for options in kinds {
                let Some(packed) = compressed(plain, options) else {
                    println!("skipped: no xz");
                    return;
                };
                assert!(decompress(&packed, plain.len()) == Ok(plain.to_vec()), "{options:?}");
                if !plain.is_empty() {
                    let limit = plain.len() - 1;
                    assert_eq!(decompress(&packed, limit), Err(NotRead::TooLarge(limit)));
                }
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_takes_memory() {
        let Some(packed) = compressed(&vec![0; 64 << 20], &["-0"]) else {
            println!("skipped: no xz");
            return;
        };
        assert!(packed.len() < 64 << 10);
        assert_eq!(decompress(&packed, 1 << 20), Err(NotRead::TooLarge(1 << 20)));
    }

    #[test]
    fn a_broken_stream_is_refused_whatever_byte_is_wrong() {
        let plain = b"all that is compressed must be checked. ".repeat(40);
        let Some(packed) = compressed(&plain, &["-6"]) else {
            println!("skipped: no xz");
            return;
        };
        // Of the index only its place is checked.
        let index = packed.len() - 24;
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut broken = packed.clone();
                broken[at] ^= 1 << bit;
                let read = decompress(&broken, 1 << 20);
                assert!(read.is_err() || at >= index && read == Ok(plain.to_vec()), "byte {at}");
            }
            assert!(decompress(&packed[..at], 1 << 20).is_err() || at > index, "{at} bytes");
        }
    }
}
