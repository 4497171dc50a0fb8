//! C++ landing pads, from the exception tables in `.gcc_except_table`.
//!
//! For:     `code_pointers`: an unwinder enters functions at these places.
//! State:   none.
//! Context: control.
//! Keeps:   L1 every landing pad of a table that could be read to its end is in the result.
//! Checked: `landing_pads_of_a_thrower_are_those_of_its_assembly` in tests/suite/pointers.rs.
//! Source:  the LSDA layout of the Itanium C++ ABI, as GCC and LLVM write it.

use gimli::{DwEhPe, EndianSlice, LittleEndian, Reader, constants as c};

use super::ElfImage;
use crate::ImageAddr;

type Input<'d> = EndianSlice<'d, LittleEndian>;

/// A bound on the call sites of one function, against a broken table.
const MAX_CALL_SITES: usize = 1 << 20;

/// Adds the landing pads of all functions to `found`.
pub(super) fn landing_pads(image: &ElfImage, found: &mut Vec<ImageAddr>) {
    // The tables of call sites are apart in the file; where functions share one, the file's length bounds them still.
    let mut left = image.data.len();
    for fde in image.fdes() {
        if let Some(lsda) = fde.lsda {
            // A table that cannot be read to its end still gave what came before.
            let _ = one_table(image, fde.start, lsda, &mut left, found);
        }
    }
}

fn one_table(
    image: &ElfImage,
    function: ImageAddr,
    lsda: ImageAddr,
    left: &mut usize,
    found: &mut Vec<ImageAddr>,
) -> Option<()> {
    let mut input = EndianSlice::new(image.bytes_from(lsda)?, LittleEndian);
    let whole = input;
    let mut base = function.0;
    let base_encoding = DwEhPe(input.read_u8().ok()?);
    if base_encoding != c::DW_EH_PE_omit {
        let here = lsda.0 + (whole.len() - input.len()) as u64;
        let value = encoded(&mut input, base_encoding)?;
        let is_relative = base_encoding.application() == c::DW_EH_PE_pcrel;
        base = if is_relative { value.wrapping_add(here) } else { value };
    }
    let types_encoding = DwEhPe(input.read_u8().ok()?);
    if types_encoding != c::DW_EH_PE_omit {
        input.read_uleb128().ok()?;
    }
    let encoding = DwEhPe(input.read_u8().ok()?);
    let table_bytes = input.read_uleb128().ok()? as usize;
    let mut sites = input.split(table_bytes).ok()?;
    for _ in 0..MAX_CALL_SITES {
        if sites.is_empty() {
            break;
        }
        let before = sites.len();
        let _start = encoded(&mut sites, encoding)?;
        let _len = encoded(&mut sites, encoding)?;
        let pad = encoded(&mut sites, encoding)?;
        let _action = sites.read_uleb128().ok()?;
        *left = left.checked_sub(before - sites.len())?;
        if pad != 0 {
            found.push(ImageAddr(base.wrapping_add(pad)));
        }
    }
    Some(())
}

/// A value in one of the formats that exception tables use, sign-extended where it is signed.
fn encoded(input: &mut Input<'_>, encoding: DwEhPe) -> Option<u64> {
    let value = match encoding.format() {
        c::DW_EH_PE_uleb128 => input.read_uleb128(),
        c::DW_EH_PE_sleb128 => input.read_sleb128().map(|v| v as u64),
        c::DW_EH_PE_udata2 => input.read_u16().map(u64::from),
        c::DW_EH_PE_sdata2 => input.read_i16().map(|v| v as u64),
        c::DW_EH_PE_udata4 => input.read_u32().map(u64::from),
        c::DW_EH_PE_sdata4 => input.read_i32().map(|v| v as u64),
        c::DW_EH_PE_absptr | c::DW_EH_PE_udata8 | c::DW_EH_PE_sdata8 => input.read_u64(),
        _ => return None,
    };
    value.ok()
}
