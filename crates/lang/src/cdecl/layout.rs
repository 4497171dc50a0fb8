//! Where fields lie.
use super::Attributes;
use crate::types::{CTypes, Field, Type};

/// A field before layout.
pub(super) struct Member {
    pub name: Option<String>,
    pub ty: Type,
    pub bits: Option<u8>,
    pub aligned: u32,
    pub packed: bool,
}

/// Fields, size and alignment.
pub(super) fn lay_out(
    members: &[Member],
    union: bool,
    attributes: Attributes,
    types: &CTypes,
) -> (Vec<Field>, u32, u32) {
    let (mut fields, mut at, mut size, mut most) = (Vec::new(), 0u64, 0u64, 1u32);
    for member in members {
        let bytes = types.size(&member.ty);
        let packed = attributes.packed || member.packed;
        let align = if packed { 1 } else { types.align(&member.ty).max(1) }.max(member.aligned);
        if union {
            at = 0;
        }
        let unit = u64::from(bytes) * 8;
        let (offset, bits) = match member.bits {
            Some(0) => {
                at = at.next_multiple_of(unit.max(8));
                continue;
            }
            Some(width) => {
                let width = u64::from(width);
                if !packed && unit > 0 && at % unit + width > unit {
                    at = at.next_multiple_of(unit);
                }
                let start = at;
                at += width;
                ((start / 8) as u32, Some(((start % 8) as u8, width as u8)))
            }
            None => {
                at = at.next_multiple_of(u64::from(align) * 8);
                let start = (at / 8) as u32;
                at += unit;
                (start, None)
            }
        };
        if member.bits.is_none() || member.name.is_some() {
            most = most.max(align);
        }
        size = size.max(at);
        match (&member.name, &member.ty) {
            (Some(name), ty) => fields.push(Field { name: name.clone(), ty: ty.clone(), offset, bits }),
            // The fields of an anonymous member are the struct's own.
            (None, Type::Struct(id)) => fields.extend(
                types.get(*id).fields.iter().map(|f| Field { offset: f.offset + offset, ..f.clone() }),
            ),
            _ => {}
        }
    }
    let align = most.max(attributes.aligned);
    let size = size.div_ceil(8).next_multiple_of(u64::from(align)).min(1 << 26) as u32;
    (fields, size, align)
}
