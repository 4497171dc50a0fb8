//! Three kinds of address, and the step between two of them.
//!
//! For:     keeping offsets in a file, addresses in an image and addresses in a process apart.
//! State:   none.
//! Context: control.
//! Keeps:   A1 `Bias::addr` and `Bias::image` undo each other for every value.
//! Checked: tests below.

use std::fmt;

/// Where a byte lies in a file.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(pub u64);

/// Where a byte lies in the image that a file's program headers describe, as nm(1) prints it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageAddr(pub u64);

/// Where a byte lies in a process.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(pub u64);

/// What the loader added to an image's addresses, modulo 2^64; 0 for a program at fixed addresses.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bias(pub u64);

impl Bias {
    /// The difference between one place in a process and in its image.
    pub fn between(process: Addr, image: ImageAddr) -> Bias {
        Bias(process.0.wrapping_sub(image.0))
    }

    /// Where an address of the image lies in the process.
    pub fn addr(self, image: ImageAddr) -> Addr {
        Addr(image.0.wrapping_add(self.0))
    }

    /// Which address of the image an address of the process is.
    pub fn image(self, process: Addr) -> ImageAddr {
        ImageAddr(process.0.wrapping_sub(self.0))
    }
}

macro_rules! shown_as_hex {
    ($($kind:ident),*) => {$(
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::LowerHex for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x})", stringify!($kind), self.0)
            }
        }
    )*};
}

macro_rules! moved_by_bytes {
    ($($kind:ident),*) => {$(
        impl $kind {
            /// The place `bytes` further, `None` past the end of the address space.
            pub fn checked_add(self, bytes: u64) -> Option<$kind> {
                self.0.checked_add(bytes).map($kind)
            }
        }
    )*};
}

shown_as_hex!(FileOffset, ImageAddr, Addr, Bias);
moved_by_bytes!(FileOffset, ImageAddr, Addr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_taken_and_undone_gives_the_same_address() {
        for (process, image) in [(0x7f00_0000_1234, 0x1234), (0x401000, 0x401000), (0x10, u64::MAX)] {
            let bias = Bias::between(Addr(process), ImageAddr(image));
            assert_eq!(bias.addr(ImageAddr(image)), Addr(process));
            assert_eq!(bias.image(Addr(process)), ImageAddr(image));
        }
    }

    #[test]
    fn addresses_print_as_hexadecimal() {
        assert_eq!(ImageAddr(0x1234).to_string(), "0x1234");
        assert_eq!(format!("{:?}", FileOffset(16)), "FileOffset(0x10)");
        assert_eq!(Addr(u64::MAX).checked_add(1), None);
    }
}
